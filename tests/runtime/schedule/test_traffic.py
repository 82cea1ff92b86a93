"""Traffic: the table of the docstring, and movements of all kinds priced as their pushes are, one by one."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from levelled import levelled
from naive_plan import quickest
from naive_roofline import fold_ns
from naive_traffic import traffic_price

from maniple.regions.columns.history import BY, ELEMENTS, FROM, GROUP, GROUP_SIZE, KIND, NONE, TO, TOUCHED, Table
from maniple.regions.columns.validity import ALL_GATHER, ALL_REDUCE, BROADCAST, COPY, FOLD, REDUCE_SCATTER
from maniple.runtime.machine.machine import Machine
from maniple.runtime.machine.machine_part import Host, Link, Memory, Processor
from maniple.runtime.schedule import traffic
from maniple.runtime.schedule.movement_plan import NAMES
from maniple.runtime.schedule.network import Network
from maniple.runtime.schedule.traffic import price

SECOND = 10**9
Member = tuple[int, int, int, int]
Hold = tuple[int, int]


def star(rates: list[float], latency: float, kind: str = "gpu") -> Machine:
    """Memories of one processor each around a switch; links from and to a memory have its rate."""
    links = []
    for memory, rate in enumerate(rates):
        links += [Link(memory, "s", latency, rate), Link("s", memory, latency, rate)]
    count = range(len(rates))
    memories = tuple(Memory(m, m, 0, 1, 2.0 / 0.7) for m in count)  # 2 B/s, as kernels reach them
    processors = tuple(Processor(m, kind, m, 1, 1.0, f"p{m}") for m in count)
    return Machine("star", (Host(0, "host"),), memories, processors, tuple(links), None, None, ("s",))


def move(**columns: int) -> list[int]:
    """A movement, of which some columns are given."""
    names = {"kind": KIND, "by": BY, "elements": ELEMENTS, "source": FROM, "target": TO, "touched": TOUCHED}
    row = [NONE] * (TOUCHED + 1)
    for name, value in columns.items():
        row[names[name]] = value
    return row


def collective(kind: int, members: list[Member]) -> tuple[list[int], list[Member]]:
    pushed = sum(elements for _, elements, *_ in members) * (len(members) - 1)
    row = move(kind=kind, elements=pushed * (2 if kind == ALL_REDUCE else 1))
    row[GROUP], row[GROUP_SIZE] = 0, len(members)
    return row, members


def table(rows: list[list[int]] | list[Member], width: int) -> Table:
    return np.asarray(rows, dtype=np.int64).reshape(len(rows), width)


def priced(
    machine: Machine, rows: list[list[int]], members: list[Member], itemsize: int = 1
) -> list[tuple[int, list[Hold]]]:
    """The nanoseconds and the holds of each movement."""
    found = price(Network.of(machine), itemsize, table(rows, TOUCHED + 1), table(members, 4))
    assert found.starts[-1] == len(found.held)
    holds = np.split(found.held[:, :2], found.starts[1:-1])
    return [
        (taken, list(map(tuple, held.tolist()))) for taken, held in zip(found.durations.tolist(), holds, strict=True)
    ]


def test_the_table_of_the_docstring() -> None:
    ((duration, held),) = priced(
        star([2.0, 1.0], 1.0), [move(kind=COPY, elements=4, source=0, target=1, touched=4)], []
    )
    assert [span for _, span in held] == [2 * SECOND, 4 * SECOND]
    assert duration == 6 * SECOND
    text = traffic.__doc__ or ""
    assert "0-s  ##..        held for 2 s" in text
    assert "s-1  ####        held for 4 s; the transfer ends at 6 s" in text


def test_a_collective_loads_a_shared_link_with_the_sum() -> None:
    row, members = collective(ALL_GATHER, [(memory, 3, 3, 3) for memory in range(3)])
    ((duration, held),) = priced(star([1.0, 1.0, 1.0], 0.5), [row], members)
    assert {span for _, span in held} == {6 * SECOND}
    assert duration == (6 + 1) * SECOND


def test_a_movement_of_nothing_takes_a_nanosecond() -> None:
    row = move(kind=COPY, elements=0, source=0, target=1, touched=0)
    assert priced(star([1.0, 1.0], 0.0), [row], []) == [(1, [])]


def test_a_cpu_processor_copies_what_it_sends_and_folds_what_it_gets() -> None:
    """Processor 0 folds 4 bytes of each of two and writes them; the other sends it 4 bytes that are strewn over 16."""
    row, members = collective(REDUCE_SCATTER, [(0, 4, 16, 4), (1, 0, 0, 0)])
    ((duration, held),) = priced(star([1.0, 1.0], 1.0, "cpu"), [row], members)
    assert held[:2] == [(0, 6 * SECOND), (1, 16 * SECOND)]
    assert {span for _, span in held[2:]} == {4 * SECOND}
    assert duration == (16 + 2) * SECOND


def test_a_fold_holds_its_processor() -> None:
    machine = Machine.preset("cpu:2x2")
    nanoseconds = fold_ns(4000, machine, machine.processors[3])
    assert priced(machine, [move(kind=FOLD, by=3, elements=1000)], [], 4) == [(nanoseconds, [(3, nanoseconds)])]


def naive(machine: Machine, row: list[int], members: list[Member], itemsize: int) -> tuple[int, list[Hold]]:
    """A movement priced push by push."""
    kind = row[KIND]
    if kind == FOLD:
        nanoseconds = fold_ns(row[ELEMENTS] * itemsize, machine, machine.processor(row[BY]))
        return nanoseconds, [(row[BY], nanoseconds)]
    if kind == COPY:
        pushes = [(row[FROM], row[TO], row[ELEMENTS] * itemsize, row[TOUCHED])]
        return traffic_price(machine, pushes, 1, {})
    group = [member for member in members[row[GROUP] : row[GROUP] + row[GROUP_SIZE]] if member[1]]
    memories = [memory for memory, *_ in members[row[GROUP] : row[GROUP] + row[GROUP_SIZE]]]
    pushes, folded = [], {}
    for owner, elements, touched, _ in group:
        for other in memories:
            if other != owner and kind in (ALL_REDUCE, REDUCE_SCATTER):
                pushes.append((other, owner, elements * itemsize, touched))
            if other != owner and kind != REDUCE_SCATTER:
                pushes.append((owner, other, elements * itemsize, touched))
        if kind in (ALL_REDUCE, REDUCE_SCATTER):
            folded[owner] = (len(memories) + 1) * elements * itemsize
    direct = traffic_price(machine, pushes, 2 if kind == ALL_REDUCE else 1, folded)
    sizes = dict.fromkeys(memories, 0) | {owner: elements * itemsize for owner, elements, *_ in group}
    touched_of = {owner: touched for owner, _, touched, _ in group}
    reduces, spreads = kind in (ALL_REDUCE, REDUCE_SCATTER), kind != REDUCE_SCATTER
    return quickest(machine, direct, sizes, touched_of, itemsize, reduces=reduces, spreads=spreads)


def drawn(chance: Random, machine: Machine) -> tuple[list[list[int]], list[Member]]:
    """Movements of all kinds, more than there is room for at first."""
    rows, members = [], list[Member]()
    for _ in range(40):
        kind = chance.choice([FOLD, COPY, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST])
        if kind == FOLD:
            rows.append(
                move(kind=kind, by=chance.randrange(len(machine.processors)), elements=chance.randint(1, 1 << 30))
            )
            continue
        group = sorted(chance.sample(range(len(machine.memories)), chance.randint(2, len(machine.memories))))
        owned = [(memory, chance.choice([0, 64, 1 << 30]), chance.randint(1, 1 << 33), 1) for memory in group]
        if kind == COPY:
            (source, size, touched, _), (target, *_) = chance.sample(owned, 2)
            rows.append(move(kind=kind, elements=size + 1, source=source, target=target, touched=touched))
            continue
        row, owned = collective(kind, [*owned[:-1], (owned[-1][0], 1, 64, 1)])
        row[GROUP] = len(members)
        rows.append(row)
        members += owned
    return rows, members


@pytest.mark.parametrize("name", ["cpu:2x1", "cpu:3x4", "p100x4", "k80x8", "p100x9", "v100x8", "h100x16"])
@pytest.mark.parametrize("seed", range(4))
def test_movements_cost_what_their_pushes_cost(name: str, seed: int) -> None:
    chance, machine = Random(f"{name} {seed}"), Machine.preset(name)
    rows, members = drawn(chance, machine)
    itemsize = chance.choice([1, 4, 8])
    assert priced(machine, rows, members, itemsize) == [naive(machine, row, members, itemsize) for row in rows]


def exchanged(machine: Machine, size: int) -> traffic.Prices:
    """An all-reduce of so many bytes over all memories, each of which owns an equal block."""
    count = len(machine.memories)
    row, members = collective(ALL_REDUCE, [(memory, size // count, size // count, 1) for memory in range(count)])
    return price(Network.of(machine), 1, table([row], TOUCHED + 1), table(members, 4))


def test_the_plan_changes_with_the_size() -> None:
    """Levels have four latencies where direct has two, and a quarter of the bytes between hosts."""
    machine = Machine.preset("p100x16")
    assert [NAMES[exchanged(machine, size).plans[0]] for size in (1 << 10, 64 << 20)] == ["direct", "levels"]


def test_with_a_link_for_each_pair_equal_blocks_go_direct_and_those_of_one_owner_do_not() -> None:
    """As machines are detected: no card is shared, so only a processor that copies for all is spared by other plans."""
    machine = Machine.cpu(1, ranks=16, nodes=4)
    for size in (1 << 10, 1 << 20, 1 << 30):
        assert NAMES[exchanged(machine, size).plans[0]] == "direct"
    size = 1 << 20
    row, members = collective(BROADCAST, [(0, size, size, size), *((memory, 0, 0, 0) for memory in range(1, 16))])
    assert NAMES[price(Network.of(machine), 1, table([row], TOUCHED + 1), table(members, 4)).plans[0]] != "direct"


@pytest.mark.parametrize(("hosts", "members"), [(2, 2), (2, 4), (4, 4), (3, 8)])
def test_levels_take_the_bytes_of_the_closed_form_over_the_links_between_hosts(hosts: int, members: int) -> None:
    """2 (h - 1) S in all between hosts: of that, a host of p100s sends a share through its one card."""
    machine = Machine.preset(f"p100x{4 * hosts}") if members == 4 else levelled(hosts, members, "gpu")
    size = 64 << 20
    size -= size % (hosts * members)
    prices = exchanged(machine, size)
    assert NAMES[prices.plans[0]] == "levels"
    base = len(machine.processors)
    sent = {machine.routes.name(lane - base): held for lane, _, held in prices.held.tolist() if lane >= base and held}
    out = [held for name, held in sent.items() if name.endswith("-> network")]
    assert out == [2 * (hosts - 1) * size // hosts] * hosts


@pytest.mark.parametrize("members", [2, 4, 7, 16])
def test_on_equal_links_a_large_all_reduce_is_as_quick_as_its_links_let_it_be(members: int) -> None:
    """Each memory sends 2 (n - 1) / n of the bytes, and gets as many."""
    bandwidth, size = 1e10, (64 << 20) - (64 << 20) % members
    taken = int(exchanged(star([bandwidth] * members, 5e-6), size).durations[0])
    least = 2 * (members - 1) / members * size / bandwidth * 1e9
    assert least <= taken <= 1.05 * least
