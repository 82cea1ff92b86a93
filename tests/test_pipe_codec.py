"""Messages on a pipe whose reader is slow."""

from __future__ import annotations

import os

import pytest

from maniple.pipe_codec import Inbox, Outbox


def test_an_outbox_does_not_wait_for_its_reader() -> None:
    """A pipe takes 64 KiB; the rest goes when there is room, and nothing is lost or mixed up."""
    reading, writing = os.pipe()
    outbox, inbox, found = Outbox(writing), Inbox(reading), list[list[object]]()
    sent = [["item", number, bytes([number]) * 100_000] for number in range(8)]
    for message in sent:
        outbox.put(*message)
    assert not outbox.flush()
    while len(found) < len(sent):
        inbox.receive()
        found += inbox.messages()
        outbox.flush()
    assert found == sent
    assert outbox.flush()
    os.close(reading)
    outbox.put("stop")
    with pytest.raises(BrokenPipeError):
        outbox.flush()
    os.close(writing)
