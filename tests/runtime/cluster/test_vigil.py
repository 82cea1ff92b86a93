"""The vigil, on a clock of its own: the table of its docstring, and laws over drawn histories."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.cluster.vigil import HANG_S, LATE_S, SILENCE_S, WORD_S, Trouble, Verdict, Vigil
from maniple.runtime.control.control import place
from maniple.runtime.transports.message import Headway

TICK_S = 0.5


class Watch:
    """A vigil over ranks that do what they are set to do, half a second at a time.

    Each rank `works`, `waits`, `steps` (gets on), is `locked` (its interpreter says nothing), `stopped`, or `ended`.
    """

    def __init__(self, size: int, hang_s: float = 20.0) -> None:
        self.vigil, self.now = Vigil(hang_s), 1000.0
        self.does = ["steps"] * size
        self.progress = [0] * size
        self.patience = [0.0] * size
        for rank in range(size):
            self.vigil.admit(rank, self.now)

    def tick(self) -> Verdict | None:
        self.now += TICK_S
        for rank, does in enumerate(self.does):
            if does == "stopped":
                continue
            self.vigil.note_echo(rank, self.now)
            if does not in {"locked", "ended"}:
                self.progress[rank] += does == "steps"
                waits, patience = does == "waits", self.patience[rank]
                word = Headway(rank, self.progress[rank], waits, round(1000 * patience), doing=f"task {rank}")
                self.vigil.note(rank, word, self.now)
                self.patience[rank] = max(0.0, patience - TICK_S)
        return self.vigil.look(self.now)

    def run(self, seconds: float) -> Verdict | None:
        """Give the first verdict."""
        for _ in range(round(seconds / TICK_S)):
            found = self.tick()
            if found is not None:
                return found
        return None


def test_a_stopped_process_is_named_after_five_seconds() -> None:
    watch = Watch(3)
    watch.does[1] = "stopped"
    assert watch.run(SILENCE_S) is None
    assert watch.run(TICK_S) == Verdict(Trouble.SILENT, 1, SILENCE_S + TICK_S)


def test_of_two_that_are_silent_the_first_is_named() -> None:
    watch = Watch(3)
    watch.does[2] = "stopped"
    watch.run(1.0)
    watch.does[0] = "stopped"
    found = watch.run(60.0)
    assert found is not None
    assert (found.trouble, found.rank) == (Trouble.SILENT, 2)


def test_busy_is_not_dead() -> None:
    for does in ("works", "locked"):
        watch = Watch(2, HANG_S)
        watch.does = ["waits", does]
        assert watch.run(HANG_S - 1.0) is None
        watch.does = ["works", does]
        assert watch.run(3 * HANG_S) is None, "nobody waits for it"


def test_a_rank_that_others_wait_for_hangs() -> None:
    for does in ("works", "locked"):
        watch = Watch(3)
        watch.does = ["waits", does, "waits"]
        found = watch.run(60.0)
        assert found is not None
        assert (found.trouble, found.rank, found.witness) == (Trouble.HUNG, 1, 0)
        assert 20.0 <= found.seconds <= 20.0 + 2 * TICK_S + WORD_S


def test_the_rank_that_stopped_getting_on_first_is_named() -> None:
    watch = Watch(3)
    watch.does = ["waits", "steps", "works"]
    watch.run(5.0)
    watch.does[1] = "works"
    found = watch.run(60.0)
    assert found is not None
    assert (found.trouble, found.rank) == (Trouble.HUNG, 2)


def test_a_wait_must_have_lasted_as_long() -> None:
    watch = Watch(2)
    watch.does = ["works", "works"]
    assert watch.run(100.0) is None
    watch.does = ["waits", "works"]
    assert watch.run(19.5) is None
    found = watch.run(2.0)
    assert found is not None
    assert (found.trouble, found.rank) == (Trouble.HUNG, 1)


def test_a_program_may_ask_for_patience() -> None:
    watch = Watch(2)
    watch.does, watch.patience[1] = ["waits", "works"], 100.0
    assert watch.run(99.0) is None
    assert watch.run(19.0) is None, "its clock starts where its patience ended"
    assert watch.run(10.0) is not None


def test_patience_holds_while_the_interpreter_is_locked() -> None:
    watch = Watch(2)
    watch.does, watch.patience[1] = ["waits", "works"], 100.0
    watch.tick()
    watch.does[1] = "locked"
    assert watch.run(98.0) is None
    assert watch.run(10.0) is not None


def test_where_all_wait_nobody_is_to_blame() -> None:
    watch = Watch(2)
    watch.does = ["waits", "waits"]
    found = watch.run(60.0)
    assert found is not None
    assert (found.trouble, found.rank, found.witness) == (Trouble.STUCK, 0, None)
    assert found.describe(lambda rank: place(rank, 1), ", last call: `x`").startswith(
        "no rank has got on for 20 s, all wait"
    )


def test_an_end_may_have_ended_a_wait_of_others() -> None:
    """Their word of that is on its way; one that waits on, alone, is told after as long again."""
    watch = Watch(2, hang_s=4.0)
    watch.does = ["waits", "works"]
    watch.patience[1] = 60.0
    assert watch.run(6.0) is None
    watch.vigil.end(1)
    watch.does[1] = "ended"
    assert watch.run(3.5) is None
    assert watch.run(4.0) is not None


def test_a_rank_alone_and_ranks_after_the_end_are_left_alone() -> None:
    watch = Watch(1)
    watch.does = ["waits"]
    assert watch.run(100.0) is None
    watch = Watch(2)
    watch.vigil.end(0)
    watch.does = ["ended", "works"]
    assert watch.run(100.0) is None, "nothing waits for what a program still does by itself"
    watch.does = ["ended", "stopped"]
    assert watch.run(10.0) == Verdict(Trouble.SILENT, 1, SILENCE_S + TICK_S)


def test_time_in_which_nobody_watched_is_nobodys_fault() -> None:
    watch = Watch(2)
    watch.does = ["waits", "works"]
    watch.run(10.0)
    watch.now += 3600.0
    watch.vigil.forgive(3600.0)
    assert watch.vigil.look(watch.now) is None
    assert watch.run(9.0) is None
    assert watch.run(3.0) is not None


@given(
    histories=st.lists(
        st.tuples(
            st.lists(st.sampled_from(["steps", "works", "waits", "locked"]), min_size=3, max_size=3),
            st.floats(0.5, 15.0),
        ),
        max_size=12,
    )
)
def test_whoever_lives_is_never_silent_and_whoever_gets_on_never_hangs(
    histories: list[tuple[list[str], float]],
) -> None:
    """Over drawn histories, a verdict names one that did not get on for the whole time, while its witness waited."""
    watch = Watch(3)
    since = [(watch.now, {"steps"})] * 3
    for does, seconds in histories:
        for rank, (old, new) in enumerate(zip(watch.does, does, strict=True)):
            if new == "steps" or old == "steps":
                since[rank] = (watch.now, set())
            since[rank] = (since[rank][0], since[rank][1] | {new})
        watch.does = list(does)
        found = watch.run(seconds)
        if found is None:
            continue
        assert found.trouble is not Trouble.SILENT
        begin, did = since[found.rank]
        assert watch.now - begin >= 20.0 - TICK_S
        assert "steps" not in did
        if found.trouble is Trouble.HUNG:
            assert watch.does[found.rank] != "waits"
            assert found.witness is not None
            assert watch.does[found.witness] in {"waits", "locked"}
            assert watch.now - since[found.witness][0] >= 20.0 - TICK_S
        else:
            assert set(watch.does) <= {"waits", "locked"}
        return


@given(does=st.lists(st.sampled_from(["steps", "works", "waits", "locked"]), min_size=2, max_size=4), at=st.data())
def test_a_stopped_process_is_named_whatever_others_do(does: list[str], at: st.DataObject) -> None:
    watch = Watch(len(does), HANG_S)
    watch.does = list(does)
    rank = at.draw(st.integers(0, len(does) - 1))
    assert watch.run(at.draw(st.floats(0.0, 30.0))) is None
    watch.does[rank] = "stopped"
    found = watch.run(2 * SILENCE_S)
    assert found is not None
    assert (found.trouble, found.rank) == (Trouble.SILENT, rank)
    assert found.seconds <= SILENCE_S + TICK_S


def lateness(watch: Watch, seconds: float) -> list[tuple[float, Verdict]]:
    """What a vigil says of ranks that are late, and when."""
    start, found = watch.now, []
    for _ in range(round(seconds / TICK_S)):
        assert watch.tick() is None
        late = watch.vigil.late(watch.now)
        if late is not None:
            found.append((watch.now - start, late))
    return found


def test_a_rank_that_is_late_is_said_once_for_each_time_with_its_task() -> None:
    watch = Watch(3, HANG_S)
    watch.does = ["waits", "works", "steps"]
    ((at, late),) = lateness(watch, 3 * LATE_S)
    assert (at, late) == (LATE_S + TICK_S, Verdict(Trouble.LATE, 1, LATE_S, witness=0, doing="task 1"))
    text = late.describe(place_of, ", last call: `step 3`")
    assert text == "rank 1 is late: rank 0 has waited 20 s for it, in task `task 1`, last call: `step 3`"
    watch.does[1] = "steps"
    assert lateness(watch, 5.0) == []
    watch.does[1] = "works"
    assert len(lateness(watch, 3 * LATE_S)) == 1


def test_nobody_is_late_for_whom_nobody_waits_or_who_said_that_it_takes_long() -> None:
    watch = Watch(2, HANG_S)
    watch.does = ["steps", "works"]
    assert lateness(watch, 3 * LATE_S) == []
    watch.does = ["waits", "works"]
    watch.patience[1] = 3 * LATE_S
    assert lateness(watch, 2 * LATE_S) == []


def place_of(rank: int) -> str:
    return f"rank {rank}"
