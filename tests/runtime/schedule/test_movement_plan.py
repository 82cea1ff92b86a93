"""Movement plans: the table of the docstring, the hops of drawn groups against the rule, and what they come to."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from naive_plan import hops_of, levels

from maniple.runtime.schedule import movement_plan
from maniple.runtime.schedule.movement_plan import DIRECT, FIRST, FOLDS, LEVELS, MORE, OWNER, RECEIVER, SENDER, table


def of(plan: int, hosts: list[int], *, reduces: bool = True, spreads: bool = True) -> list[list[int]]:
    """The hops of a plan, all members owning a block."""
    rows: list[list[int]] = table(
        plan, np.asarray(hosts), np.ones(len(hosts), dtype=np.int64), reduces, spreads
    ).tolist()
    return rows


def test_the_table_of_the_docstring() -> None:
    drawn: dict[int, list[str]] = {0: [], 1: [], 2: [], 3: []}
    for phase, sender, receiver, owner, _ in of(LEVELS, [0, 0, 1, 1]):
        if owner == 0:
            drawn[phase].append(f"{sender} -> {receiver}")
    assert drawn == {0: ["1 -> 0", "3 -> 2"], 1: ["2 -> 0"], 2: ["0 -> 2"], 3: ["0 -> 1", "2 -> 3"]}
    for line in ("up     1 -> 0  2 -> 0  0 -> 2  0 -> 1", "       3 -> 2                  2 -> 3"):
        assert line in (movement_plan.__doc__ or "")


def drawn_hosts(chance: Random) -> list[int]:
    return [chance.randrange(4) for _ in range(chance.randint(2, 12))]


@pytest.mark.parametrize("seed", range(40))
def test_levels_are_those_of_the_rule(seed: int) -> None:
    chance = Random(seed)
    hosts = drawn_hosts(chance)
    owns = [chance.random() < 0.7 for _ in hosts]
    reduces = chance.random() < 0.7
    spreads = not reduces or chance.random() < 0.7
    found = table(LEVELS, np.asarray(hosts), np.asarray(owns, dtype=np.int64), reduces, spreads).tolist()
    owners = [place for place, own in enumerate(owns) if own]
    up = levels(hosts, range(len(hosts)), owners)
    assert sorted((*row[:4], bool(row[FOLDS])) for row in found) == hops_of(up, 2, reduces=reduces, spreads=spreads)
    assert [row[0] for row in found] == sorted(row[0] for row in found)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("plan", [DIRECT, LEVELS])
def test_every_member_gets_the_sum_of_all_from_what_has_arrived_before(seed: int, plan: int) -> None:
    """The blocks are numbers: each member's contribution to a block counts once, in every order of a phase's hops."""
    chance = Random(seed)
    hosts = drawn_hosts(chance)
    members = range(len(hosts))
    value = {(owner, member): Fraction(chance.randint(1, 999)) for owner in members for member in members}
    whole = {owner: sum(value[owner, member] for member in members) for owner in members}
    known = dict(value)
    spread = {(owner, owner) for owner in members}
    rows = of(plan, hosts)
    for phase in sorted({row[0] for row in rows}):
        hops = [row for row in rows if row[0] == phase]
        chance.shuffle(hops)
        before, had = dict(known), set(spread)
        for _, sender, receiver, owner, folds in hops:
            if folds:
                known[owner, receiver] += before[owner, sender]
            else:
                assert (owner, sender) in had
                assert before[owner, owner] == whole[owner]
                spread.add((owner, receiver))
    assert spread == {(owner, member) for owner in members for member in members}
    assert len(rows) == 2 * len(hosts) * (len(hosts) - 1)
    first = [row for row in rows if row[FOLDS] == FIRST]
    assert len({(row[OWNER], row[RECEIVER]) for row in rows if row[FOLDS] in (FIRST, MORE)}) == len(first)


@pytest.mark.parametrize(("hosts", "members"), [(1, 4), (2, 1), (2, 2), (3, 4), (5, 3)])
def test_what_moves_is_what_the_closed_forms_say(hosts: int, members: int) -> None:
    """Of n = h r blocks of S / n: 2 (n - 1) S in all, 2 (h - 1) S between hosts, the rest within them."""
    host_of = [host for host in range(hosts) for _ in range(members)]
    count = len(host_of)
    rows = of(LEVELS, host_of)
    between = sum(host_of[row[SENDER]] != host_of[row[RECEIVER]] for row in rows)
    assert Fraction(len(rows), count) == 2 * (count - 1)
    assert Fraction(between, count) == 2 * (hosts - 1)
    assert Fraction(len(rows) - between, count) == 2 * hosts * (members - 1)
