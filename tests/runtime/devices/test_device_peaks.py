"""Peaks of devices: whoever looks sees the most since he began, however often others begin and ask meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.devices.device_peaks import Bytes, DevicePeaks, Look


class Allocations:
    """An allocator of one device, with one peak."""

    def __init__(self) -> None:
        self.now = self.peak = Bytes(0, 0)

    def held(self) -> Bytes:
        return self.now

    def most(self) -> Bytes:
        return self.peak

    def set_back(self) -> None:
        self.peak = self.now

    def have(self, given_bytes: int, kept: int) -> None:
        self.now = Bytes(given_bytes, given_bytes + kept)
        self.peak = Bytes(max(self.peak.given, self.now.given), max(self.peak.taken, self.now.taken))


DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("have"), st.integers(0, 9), st.integers(0, 9)),
        st.tuples(st.just("look")),
        st.tuples(st.just("ask"), st.integers(0, 5)),
        st.tuples(st.just("leave"), st.integers(0, 5)),
    ),
    max_size=40,
)


@given(DEEDS)
def test_every_look_gives_the_most_since_it_began(deeds: list[tuple[str, int, int]]) -> None:
    allocator = Allocations()
    peaks = DevicePeaks(allocator)
    looks: list[tuple[Look, list[Bytes]]] = []
    for deed, *numbers in deeds:
        if deed == "have":
            allocator.have(*numbers)
            for _, had in looks:
                had.append(allocator.now)
        elif deed == "look":
            looks.append((peaks.look(), [allocator.now]))
            assert looks[-1][0].before == allocator.now
        elif numbers[0] < len(looks):
            look, had = looks[numbers[0]]
            if deed == "ask":
                assert look.peak() == Bytes(max(one.given for one in had), max(one.taken for one in had))
            else:
                del looks[numbers[0]]
    for look, had in looks:
        assert look.peak() == Bytes(max(one.given for one in had), max(one.taken for one in had))


def test_a_look_that_nobody_refers_to_is_forgotten() -> None:
    peaks = DevicePeaks(Allocations())
    looks = [peaks.look(), peaks.look()]
    assert len(peaks._looks) == 2
    del looks[0]
    assert len(peaks._looks) == 1
