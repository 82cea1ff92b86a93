"""Movement plans: the table of the docstring, the hops of drawn groups against the rule, and what they come to."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from listed_hops import FIRST, FOLDS, MORE, OWNER, RECEIVER, SENDER, table
from naive_plan import goes_up, hops_of, plans, shapes

from maniple.runtime.schedule import movement_plan, plan_flow
from maniple.runtime.schedule.movement_plan import LEVELS, NAMES, RING, TREE
from maniple.runtime.schedule.plan_flow import BEGINS, BLOCKS, COPIED, ELEMENTS, TILES, TIMES

EVERY = range(len(NAMES))


def of(plan: int, hosts: list[int], *, reduces: bool = True, spreads: bool = True) -> list[list[int]]:
    """The hops of a plan, all members owning a block and standing by their numbers."""
    count = len(hosts)
    rows: list[list[int]] = table(
        plan, np.asarray(hosts), np.arange(count), np.ones(count, dtype=np.int64), reduces, spreads
    ).tolist()
    return rows


def test_the_table_of_the_docstring() -> None:
    for plan, hosts in ((LEVELS, [0, 0, 1, 1]), (TREE, [0, 0, 0, 0]), (RING, [0, 0, 0, 0])):
        drawn: dict[int, list[str]] = defaultdict(list)
        for phase, sender, receiver, owner, _ in of(plan, hosts):
            if owner == 0:
                drawn[phase].append(f"{sender} -> {receiver}")
        lines = [
            "  ".join(hops[line] if line < len(hops) else " " * 6 for _, hops in sorted(drawn.items())).rstrip()
            for line in range(max(map(len, drawn.values())))
        ]
        name = f"    {NAMES[plan]:8}"
        assert f"\n{name}{lines[0]}\n" in (movement_plan.__doc__ or "")
        assert len(lines) == 1 or f"{name}{lines[0]}\n{' ' * 12}{lines[1]}\n" in (movement_plan.__doc__ or "")


def drawn_hosts(chance: Random) -> list[int]:
    return [chance.randrange(4) for _ in range(chance.randint(2, 17))]


@pytest.mark.parametrize("plan", EVERY)
def test_hops_are_those_of_the_rule(plan: int) -> None:
    for chance in map(Random, range(20)):
        hosts, tour = drawn_hosts(chance), list[int]()
        tour = chance.sample(range(30), len(hosts))
        owns = [chance.random() < 0.7 for _ in hosts]
        reduces = chance.random() < 0.7
        spreads = not reduces or chance.random() < 0.7
        given = np.asarray(hosts), np.asarray(tour), np.asarray(owns, dtype=np.int64)
        found = table(plan, *given, reduces, spreads).tolist()
        owners = [place for place, own in enumerate(owns) if own]
        phases, up = goes_up(*shapes(NAMES[plan]), hosts, sorted(range(len(hosts)), key=tour.__getitem__), owners)
        expected = hops_of(up, phases, reduces=reduces, spreads=spreads)
        assert sorted((*row[:4], bool(row[FOLDS])) for row in found) == expected
        assert [row[0] for row in found] == sorted(row[0] for row in found)
        assert ["direct", *(NAMES[at] for at in EVERY if movement_plan.differs(at, *given[:2]))] == plans(hosts)


@pytest.mark.parametrize("plan", EVERY)
def test_flows_are_the_sums_of_hops(plan: int) -> None:
    """Drawn weights, or all alike, as they often are: then a ring's phases are one that is repeated."""
    for seed in range(20):
        chance = Random(seed)
        hosts = drawn_hosts(chance)
        tour = chance.sample(range(30), len(hosts))
        alike = [chance.randint(1, 99) for _ in range(3)]
        weights = [
            [*(alike if seed % 2 else [chance.randint(1, 99) for _ in range(3)]), 1]
            if seed % 2 or chance.random() < 0.7
            else [0, 0, 0, 0]
            for _ in hosts
        ]
        hops = table(plan, np.asarray(hosts), np.asarray(tour), np.asarray([row[3] for row in weights]), True, False)
        expected: dict[tuple[int, ...], list[int]] = defaultdict(lambda: [0] * 6)
        for phase, sender, receiver, owner, folds in hops.tolist():
            for column, weight in enumerate(weights[owner]):
                expected[phase, sender, receiver][column] += weight
            expected[phase, sender, receiver][4 + (folds == FIRST)] += weights[owner][2]
        found: dict[tuple[int, ...], list[int]] = defaultdict(lambda: [0] * 6)
        flows = plan_flow.table(plan, np.asarray(hosts), np.asarray(tour), np.asarray(weights))
        assert np.all(np.diff(flows[:, 0]) >= 0)
        for row in flows.tolist():
            for phase in range(row[0], row[0] + row[TIMES]):
                for column, flow in enumerate((ELEMENTS, COPIED, TILES, BLOCKS)):
                    found[phase, row[1], row[2]][column] += row[flow]
                found[phase, row[1], row[2]][4 + row[BEGINS]] += row[TILES]
        assert total(found) == total(expected)


def total(found: dict[tuple[int, ...], list[int]]) -> dict[tuple[int, ...], list[int]]:
    """What goes from where to where in a phase; which of those that come at once is the first is told for all."""
    first: dict[tuple[int, ...], list[int]] = defaultdict(lambda: [0, 0])
    for (phase, _, receiver), row in found.items():
        first[phase, receiver] = [sum(pair) for pair in zip(first[phase, receiver], row[4:], strict=True)]
    return {key: row[:4] for key, row in sorted(found.items())} | {(*key, -1, -1): row for key, row in first.items()}


@pytest.mark.parametrize("plan", EVERY)
def test_every_member_gets_the_sum_of_all_from_what_has_arrived_before(plan: int) -> None:
    """The blocks are numbers: each member's contribution to a block counts once, in every order of a phase's hops."""
    for chance in map(Random, range(20)):
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
@pytest.mark.parametrize("plan", EVERY)
def test_what_moves_is_what_the_closed_forms_say(hosts: int, members: int, plan: int) -> None:
    """Of n = h r blocks of S / n: 2 (n - 1) S in all, 2 (h - 1) S between hosts, the rest within them."""
    host_of = [host for host in range(hosts) for _ in range(members)]
    count = len(host_of)
    rows = of(plan, host_of)
    assert Fraction(len(rows), count) == 2 * (count - 1)
    if movement_plan.WITHIN[plan] == movement_plan.FLAT:
        return
    between = sum(host_of[row[SENDER]] != host_of[row[RECEIVER]] for row in rows)
    assert Fraction(between, count) == 2 * (hosts - 1)
    assert Fraction(len(rows) - between, count) == 2 * hosts * (members - 1)
