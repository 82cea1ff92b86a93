"""Agreement: whether all ranks of a run make the same calls, and which one does not. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from maniple.runtime.control.control import place

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class Fault:
    """The rank to blame, and for what; the text goes after the rank's place."""

    rank: int
    text: str


@dataclass(frozen=True, slots=True)
class Told:
    """What a rank told of one call.

    Args:
        digest: stands for this call and all before.
        inputs: stands for this call's inputs.
        text: what to call it.
    """

    digest: bytes
    inputs: bytes
    text: str


@final
@dataclass(slots=True)
class _PendingCall:
    """A call that not all ranks have told.

    Args:
        digest: of the rank that told it first.
        told: what ranks told, by rank.
        parted: whether two of them differ.
    """

    digest: bytes
    told: dict[int, Told] = field(default_factory=dict)
    parted: bool = False


@final
@dataclass(slots=True)
class _PendingGather:
    """A gather that not all ranks have joined.

    Args:
        least: the fewest calls that one of its ranks had made.
        parts: calls made and payload, by rank.
    """

    least: int
    parts: dict[int, tuple[int, bytes]] = field(default_factory=dict)


class Agreement:
    """The calls that not all ranks have told yet, and the gathers that not all have joined.

    A call on which two ranks differ is judged when all have told it, or after a short patience: the ranks that made
    the same call as most others are right, and where there is no majority those who agree with the lowest rank.

    As long as all agree, what a message takes does not depend on how many ranks there are: only a difference, an end in
    the midst of others' calls and the last part of a gather are looked at rank by rank.

    Args:
        size: number of ranks.
        ranks_per_node: for the places in messages.
        patience_s: how long a difference waits for further ranks' word.
    """

    def __init__(self, size: int, ranks_per_node: int = 1, patience_s: float = 1.0) -> None:
        self.counts = [0] * size
        self.last = [""] * size
        self._size = size
        self._ranks_per_node = ranks_per_node
        self._patience_s = patience_s
        self._furthest = 0
        self._ended: set[int] = set()
        self._ended_after: int | None = None  # the fewest calls, and below gathers, of a rank that has ended
        self._ended_joined: int | None = None
        self._calls: dict[int, _PendingCall] = {}
        self._suspects: dict[int, float] = {}
        self._joined = [0] * size
        self._gathers: dict[int, _PendingGather] = {}

    def call(self, rank: int, sequence: int, told: Told, now: float) -> Fault | None:
        """Take in a call.

        Args:
            rank: whose.
            sequence: its number, from 1.
            told: the call.
            now: seconds.
        """
        if sequence != self.counts[rank] + 1:
            return Fault(rank, f"told call {sequence} after call {self.counts[rank]}")
        self.counts[rank] = sequence
        self.last[rank] = told.text
        self._furthest = max(self._furthest, sequence)
        pending = self._calls.setdefault(sequence, _PendingCall(told.digest))
        pending.told[rank] = told
        pending.parted = pending.parted or told.digest != pending.digest
        if self._ended_after is not None and self._ended_after < sequence:
            return self._describe_early_end(min(ended for ended in self._ended if self.counts[ended] < sequence), rank)
        for gather in self._gathers.values():
            if gather.least < sequence and rank not in gather.parts:
                return self._describe_parting(min(gather.parts), rank)
        return self._judge(sequence, now)

    def tick(self, now: float) -> Fault | None:
        """Judge the earliest difference whose time has come."""
        for sequence in sorted(self._suspects):
            fault = self._judge(sequence, now)
            if fault is not None:
                return fault
        return None

    def end(self, rank: int) -> Fault | None:
        """Take in that a rank's program ended."""
        self._ended.add(rank)
        made, joined = self.counts[rank], self._joined[rank]
        self._ended_after = made if self._ended_after is None else min(self._ended_after, made)
        self._ended_joined = joined if self._ended_joined is None else min(self._ended_joined, joined)
        if self._furthest > made:
            ahead = next(other for other in range(self._size) if self.counts[other] > made)
            return self._describe_early_end(rank, ahead)
        for sequence in sorted(self._gathers):
            if rank not in self._gathers[sequence].parts:
                return self._describe_gather_end(rank, min(self._gathers[sequence].parts))
        return None

    def gather(self, rank: int, payload: bytes) -> Fault | tuple[bytes, ...] | None:
        """Take in a rank's payload for its next gather; give all payloads once they are there."""
        self._joined[rank] += 1
        sequence = self._joined[rank]
        made = self.counts[rank]
        if self._ended_joined is not None and self._ended_joined < sequence:
            return self._describe_gather_end(min(each for each in self._ended if self._joined[each] < sequence), rank)
        gather = self._gathers.setdefault(sequence, _PendingGather(made))
        gather.least, parts = min(gather.least, made), gather.parts
        parts[rank] = (made, payload)
        if len(parts) < self._size:
            if self._furthest == made:
                return None
            others = (other for other in range(self._size) if self._joined[other] < sequence)
            ahead = next((other for other in others if self.counts[other] > made), None)
            return None if ahead is None else self._describe_parting(rank, ahead)
        del self._gathers[sequence]
        for other in range(1, self._size):
            if parts[other][0] != parts[0][0]:
                return Fault(
                    other,
                    f"diverged: it exchanges values after {self._after(other, parts[other][0])}, "
                    f"{self._place(0)} after {self._after(0, parts[0][0])}",
                )
        return tuple(parts[number][1] for number in range(self._size))

    def _describe_parting(self, waiting: int, calling: int) -> Fault:
        """Say that a rank exchanges values, for which another that has made further calls can only come too late."""
        exchanges = f"exchanges values after {self._after(waiting, self.counts[waiting])}"
        calls = f"has made {self._after(calling, self.counts[calling])}"
        if waiting < calling:
            return Fault(calling, f"diverged: it {calls}, {self._place(waiting)} {exchanges}")
        return Fault(waiting, f"diverged: it {exchanges}, {self._place(calling)} {calls}")

    def pending(self) -> int:
        """Count the calls and gathers that are kept because not all ranks told them."""
        return len(self._calls) + len(self._gathers)

    def _judge(self, sequence: int, now: float) -> Fault | None:
        pending = self._calls[sequence]
        told = pending.told
        if not pending.parted:
            if len(told) == self._size:
                del self._calls[sequence]
            return None
        groups: dict[bytes, list[int]] = {}
        for rank in sorted(told):
            groups.setdefault(told[rank].digest, []).append(rank)
        deadline = self._suspects.setdefault(sequence, now + self._patience_s)
        if len(told) < self._size and now < deadline:
            return None
        right = max(groups.values(), key=lambda ranks: (len(ranks), -ranks[0]))
        wrong = min(rank for rank in told if rank not in right)
        return Fault(wrong, self._difference(sequence, told[wrong], told[right[0]], self._place(right[0])))

    def _difference(self, sequence: int, wrong: Told, right: Told, witness: str) -> str:
        same = wrong.text.partition(" inputs ")[0] == right.text.partition(" inputs ")[0]
        if not same:
            return f"diverged at call {sequence}: it called `{wrong.text}`, {witness} called `{right.text}`"
        shown = [told.text + (f" inputs {told.inputs.hex()}" if told.inputs else "") for told in (wrong, right)]
        return (
            f"diverged at call {sequence}: its inputs differ: it called `{shown[0]}`, {witness} called `{shown[1]}`; "
            "all ranks give the same values: seed what they draw, as torch.manual_seed does before a module is made"
        )

    def _describe_early_end(self, rank: int, other: int) -> Fault:
        later = self.counts[rank] + 1
        told = self._calls[later].told[other]
        return Fault(rank, f"ended {self._since(rank)}; {self._place(other)} went on to call {later} `{told.text}`")

    def _describe_gather_end(self, rank: int, other: int) -> Fault:
        waits = f"{self._place(other)} waits for it in `{self.last[other]}`"
        return Fault(rank, f"ended {self._since(rank)}; {waits}")

    def _since(self, rank: int) -> str:
        return f"after call {self.counts[rank]}" if self.counts[rank] else "before its first call"

    def _after(self, rank: int, count: int) -> str:
        return f"call {count} `{self.last[rank]}`" if count else "no call"

    def _place(self, rank: int) -> str:
        return place(rank, self._ranks_per_node)
