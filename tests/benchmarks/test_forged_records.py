"""A small sweep of what `benchmarks/forged_records.py` sweeps at length."""

from __future__ import annotations

from forged_records import GROWTH, amplification, heads, shape, sweep

from maniple.runtime.cluster.coordinator_event import Received
from maniple.runtime.transports.message import Failed


def test_forged_and_mutated_records_change_nothing() -> None:
    found = sweep(4000, 20261123)
    assert found.changes == 0
    assert found.grown < GROWTH
    assert min(found.outcomes[one] for one in ("no message", "dropped", "refused")) > 40


def test_the_sweep_sees_a_change() -> None:
    """A member's word moves a head, and a look at all of it shows that."""
    for name, head in heads().items():
        before = shape(head)
        head.handle(Received(b"rank 0", Failed(0, "", "t", request=False)), 1.0)
        assert (shape(head) == before) == (name == "stopping")


def test_no_message_takes_much_more_than_its_bytes() -> None:
    """15 lists of 65535 empty lists took 69 bytes for each of theirs."""
    for name, _, factor in amplification():
        assert factor < (32.0 if "texts" in name else 3.0), name
