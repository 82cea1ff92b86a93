"""Compiled analysis of one region: the movements and dependences of a step, without an object per task.

The one analysis of whatever is known before it runs: a step of training, a trace, a step that is only simulated.
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, kernel, leaf
from maniple.regions.columns import bit_sets, boxes, collective, emission, exchange, history, merging, storage, validity
from maniple.regions.columns.bit_sets import Column
from maniple.regions.columns.boxes import AXES, HIGH, LOW, WIDTH, Boxes
from maniple.regions.columns.carry import carry
from maniple.regions.columns.history import FULL, MEMBERS, MOVES, NONE, History, Table
from maniple.regions.columns.storage import KEPT, REDUCTION, Storage
from maniple.regions.columns.validity import ACCUMULATE, MEMORY, PROCESSOR, READ, WRITE_DISCARD, Given, State, reduces

UNWRITTEN = -2


@kernel
def analyse(
    layout: Column,
    home: Boxes,
    uses: Table,
    tasks: Table,
    task_boxes: Boxes,
    hosts: Column,
    past: History,
    kept: Storage,
    keeps: bool,  # noqa: FBT001
    leaves: bool,  # noqa: FBT001
) -> tuple[Table, Table, Table, int, Column, Table, Boxes, bool]:
    """Analyse the uses of a region in one step.

    Args:
        layout: the region's extents, the bytes of an element and those of a cache line.
        home: what is valid before the step, labelled by memory.
        uses: (first task, one past the last, privilege) of each use, in program order.
        tasks: (memory, processor, colour) of every task of every use that uses something.
        task_boxes: what each uses.
        hosts: the host of each memory.
        past: room for the record; where it or `kept` says afterwards that it is full, the answer is of no use.
        kept: room for the storage of all rows.
        keeps: whether that is asked for; without, the last three results are empty.
        leaves: whether it is, too, what is valid after a step; without, that is empty.

    Returns:
        Movements; members of their groups; edges (node, node that waits) by ascending node, where node t < tasks is
        task t and any other is movement t - tasks; how many nodes others wait for; the elements of instances in each
        memory; edges to the nodes of the next step; what is valid after a step, labelled by memory; whether
        contributions still wait then. A movement of kind UNWRITTEN stands for a read of what nothing wrote.
    """
    none, nowhere = past[2][:0], home[:0]
    storage.begin(kept, len(hosts) + len(tasks), keeps)
    if not history.begin(past, len(tasks), len(hosts)):
        return past[0][:0], past[1][:0], none, 0, hosts, none, nowhere, False
    cuts, starts, cells = _grid(layout, home, task_boxes)
    given = (tasks, task_boxes, cuts, starts, hosts, _instances(home, uses, tasks, task_boxes, len(hosts)), layout)
    hold, need = bit_sets.empty(cells, len(hosts)), bit_sets.empty(cells, len(hosts))
    state = (hold, bit_sets.empty(cells, _reducing(uses)), need, np.zeros(len(hosts), dtype=np.int64))
    for row in range(len(home)):
        validity.mark(given, hold, home, row, home[row, 0])
        storage.reserve(kept, home[row, 0], home[row : row + 1])
    # Contributions that later tasks of their processors may add to in place: how many, and behind it their tasks.
    open_ = np.zeros(1 + len(tasks), dtype=np.int64)
    for use in range(len(uses)):
        _use(given, state, past, kept, open_, use, uses[use])
        if past[7][FULL] or kept[8][storage.FULL]:
            break
    if past[7][FULL] or kept[8][storage.FULL]:
        return past[0][:0], past[1][:0], none, 0, hosts, none, nowhere, False
    count = past[7][MOVES]
    edges, sources = history.order_edges(past, len(tasks) + count)
    moves, members = past[0][:count].copy(), past[1][: past[7][MEMBERS]].copy()
    carried, left, waits = none, nowhere, False
    if keeps:
        carried, waits = carry(given, past, kept, uses), _waits(state)
    if leaves:
        left = _leaves(given, state)
    return moves, members, edges, sources, given[5], carried, left, waits


@kernel
def interferes(uses: Table, tasks: Table, task_boxes: Boxes) -> bool:
    """Whether two tasks of one use write an element, or tasks of one colour fold different boxes or are apart."""
    for use in range(len(uses)):
        first, last, privilege = uses[use]
        if reduces(privilege):
            for task in range(first + 1, last):
                color, before = tasks[task, validity.COLOR], tasks[task - 1, validity.COLOR]
                if color < before or (color == before and not boxes.same(task_boxes, task, task_boxes, task - 1)):
                    return True
        elif privilege != READ and _overlap(tasks, task_boxes, first, last):
            return True
    return False


@inner
def _overlap(tasks: Table, task_boxes: Boxes, first: int, last: int) -> bool:
    """Whether boxes of two colours share an element."""
    order = boxes.order_rows(task_boxes[first:last])
    for place in range(len(order)):
        one = first + order[place]
        for later in range(place + 1, len(order)):
            other = first + order[later]
            # The low on axis 0 is what boxes are ordered by first: all later ones begin past this one's end, too.
            if task_boxes[other, LOW] >= task_boxes[one, HIGH]:
                break
            different = tasks[one, validity.COLOR] != tasks[other, validity.COLOR]
            if different and boxes.overlap(task_boxes, one, task_boxes, other):
                return True
    return False


@inner
def _use(given: Given, state: State, past: History, kept: Storage, open_: Column, use: int, row: Column) -> None:
    """Analyse one use: what must move before it, who waits for whom, and what it leaves."""
    tasks, task_boxes, need = given[0], given[1], state[2]
    first, last, privilege = row[0], row[1], row[2]
    if reduces(privilege) and not merging.is_due(state):
        _contribute(given, state, past, kept, open_, row)
        return
    need[:] = 0
    for task in range(first, last):
        # Of replicas that reduce, the first contributes alone.
        if not (reduces(privilege) and _is_replica(tasks, task, first)):
            validity.mark(given, need, task_boxes, task, tasks[task, MEMORY])
    if reduces(privilege):
        merging.merge(given, state, past, kept, use)
        _contribute(given, state, past, kept, open_, row)
        return
    if privilege != WRITE_DISCARD and not _is_valid(state):
        _move(given, state, past, kept, use, first, last)
    _leave(state, privilege)
    if kept[8][KEPT]:
        for task in range(first, last):
            storage.reserve(kept, tasks[task, MEMORY], task_boxes[task : task + 1])
    _touch(given, past, first, last, privilege != READ)


@leaf
def _waits(state: State) -> bool:
    """Whether contributions wait after the last use."""
    for cell in range(len(state[1])):
        if not bit_sets.is_empty(state[1], cell):
            return True
    return False


@inner
def _leaves(given: Given, state: State) -> Boxes:
    """What is valid after the last use, labelled by memory."""
    hold, table = state[0], np.empty((0, WIDTH), dtype=np.int64)
    for memory in range(len(given[4])):
        labels = np.full(len(hold), NONE)
        for cell in range(len(hold)):
            if bit_sets.has(hold, cell, memory):
                labels[cell] = memory
        table = np.concatenate((table, validity.pieces(given, labels)))
    return table


@leaf
def _reducing(uses: Table) -> int:
    """One past the last task that reduces."""
    found = 0
    for use in range(len(uses)):
        if reduces(uses[use, 2]):
            found = max(found, uses[use, 1])
    return found


@leaf
def _is_valid(state: State) -> bool:
    """Whether all that is needed is there."""
    hold, waiting, need, _ = state
    for cell in range(len(need)):
        if not bit_sets.within(need, cell, hold, cell):
            return False
        if not bit_sets.is_empty(waiting, cell) and not bit_sets.is_empty(need, cell):
            return False
    return True


@leaf
def _touch(given: Given, past: History, first: int, last: int, writes: bool) -> None:  # noqa: FBT001
    """Let tasks wait for conflicting uses of their boxes, and then remember their own."""
    tasks, task_boxes = given[0], given[1]
    for task in range(first, last):
        history.depend(past, task, tasks[task, MEMORY], task_boxes, task, writes)
    for task in range(first, last):
        history.record(past, task, tasks[task, MEMORY], task_boxes, task, writes)


@inner
def _grid(layout: Column, home: Boxes, task_boxes: Boxes) -> tuple[Column, Column, int]:
    """Cut a region at the bounds of everything that uses it: the cuts, the start of each axis, the number of cells."""
    cuts = np.empty(2 * AXES * (1 + len(home) + len(task_boxes)), dtype=np.int64)
    starts = np.zeros(AXES + 1, dtype=np.int64)
    cells, used = 1, 0
    for axis in range(AXES):
        start = starts[axis]
        cuts[start], cuts[start + 1] = 0, layout[axis]
        used = start + 2
        for table in (home, task_boxes):
            for row in range(len(table)):
                used = validity.insert(cuts, start, used, table[row, LOW + axis])
                used = validity.insert(cuts, start, used, table[row, HIGH + axis])
        starts[axis + 1] = used
        cells *= used - start - 1
    return cuts[:used], starts, cells


@inner
def _instances(home: Boxes, uses: Table, tasks: Table, task_boxes: Boxes, memories: int) -> Column:
    """The elements of the boxes of all valid values that tasks use in each memory; contributions come later."""
    elements = np.zeros(memories, dtype=np.int64)
    hulls = np.empty((memories, boxes.WIDTH), dtype=np.int64)
    seen = np.zeros(memories, dtype=np.int64)
    for row in range(len(home)):
        _grow(hulls, seen, home, row, home[row, 0])
    for first, last, privilege in uses:
        for task in range(first, last):
            if not reduces(privilege):
                _grow(hulls, seen, task_boxes, task, tasks[task, MEMORY])
    for memory in range(memories):
        if seen[memory]:
            elements[memory] += boxes.volume(hulls, memory)
    return elements


@leaf
def _grow(hulls: Boxes, seen: Column, table: Boxes, row: int, memory: int) -> None:
    if not seen[memory]:
        boxes.put(hulls, memory, table, row)
        seen[memory] = 1
    for axis in range(AXES):
        hulls[memory, LOW + axis] = min(hulls[memory, LOW + axis], table[row, LOW + axis])
        hulls[memory, HIGH + axis] = max(hulls[memory, HIGH + axis], table[row, HIGH + axis])


@leaf
def _is_replica(tasks: Table, task: int, first: int) -> bool:
    """Whether a task computes once more what the one before it, of the same colour, contributes already."""
    return task > first and tasks[task, validity.COLOR] == tasks[task - 1, validity.COLOR]


@leaf
def _contribute(given: Given, state: State, past: History, kept: Storage, open_: Column, row: Column) -> None:
    """Let tasks contribute to what they reduce; replicas of a task, which share its colour, count once.

    Where contributions accumulate, a task adds to the one that its processor has there already, if there is one:

        use  p0            p1
        0    makes #0      makes #1
        1    adds to #0    adds to #1
        2    a read folds #0 and #1
        3    makes #2      makes #3
    """
    tasks, task_boxes, memories = given[0], given[1], len(given[4])
    first, last, accumulates = row[0], row[1], row[2] == ACCUMULATE
    for task in range(first, last):
        memory, counts = tasks[task, MEMORY], not _is_replica(tasks, task, first)
        into = _opened(given, state, open_, task) if accumulates and counts else task
        if into != task:
            storage.share(kept, memories + into, memories + task)
            history.depend(past, task, memories + into, task_boxes, task, True)
            history.record(past, task, memories + into, task_boxes, task, True)
            continue
        given[5][memory] += boxes.volume(task_boxes, task)
        if kept[8][KEPT]:
            storage.make(kept, memory, REDUCTION, memories + task, task_boxes[task : task + 1])
        if counts:
            validity.mark(given, state[1], task_boxes, task, task)
            state[3][memory] += 1
            history.record(past, task, memories + task, task_boxes, task, True)
            if accumulates:
                open_[0] += 1
                open_[open_[0]] = task


@leaf
def _opened(given: Given, state: State, open_: Column, task: int) -> int:
    """The task to whose contribution another adds in place: of its processor and box, all of it waiting; or itself."""
    tasks, task_boxes = given[0], given[1]
    number = 1
    while number <= open_[0]:
        other = open_[number]
        if not validity.is_marked(given, state[1], task_boxes, other, other):
            # Some of it was folded: nobody adds to it any more.
            open_[number] = open_[open_[0]]
            open_[0] -= 1
            continue
        if tasks[other, PROCESSOR] == tasks[task, PROCESSOR] and boxes.same(task_boxes, other, task_boxes, task):
            return int(other)
        number += 1
    return task


@inner
def _move(given: Given, state: State, past: History, kept: Storage, use: int, first: int, last: int) -> None:
    """Emit what a use that reads needs moved."""
    labels, cells = validity.labels(state)
    for cell in cells:
        if bit_sets.is_empty(state[0], cell) and bit_sets.is_empty(state[1], cell):
            history.move(past, len(given[0]), use, UNWRITTEN, NONE, 0)
            return
    if _move_together(given, state, past, kept, use, labels, cells):
        return
    apart, count = collective.groups(given, state, cells)
    if not collective.has_group(given, state, cells, apart, count):
        _move_apart(given, state, past, kept, use, first, last, labels, cells)
        return
    for group in range(count):
        own_labels, own_cells = collective.of_group(labels, cells, apart, group)
        if not _move_together(given, state, past, kept, use, own_labels, own_cells):
            _move_apart(given, state, past, kept, use, first, last, own_labels, own_cells)


@inner
def _move_together(
    given: Given, state: State, past: History, kept: Storage, use: int, labels: Column, cells: Column
) -> bool:
    """Emit what labelled cells need as one collective, if they make one."""
    kind, members, sources = collective.distribution(given, state, cells)
    if kind != NONE:
        group = bit_sets.members(members, 0)
        exchange.distribution(given, past, kept, use, kind, group, validity.pieces(given, labels), sources)
        return True
    kind, members = collective.reduction(given, state, cells)
    if kind == NONE:
        return False
    folds, _, described = validity.plan_pieces(given, state, cells, validity.pieces(given, labels), False)
    folds, starts = boxes.group(folds)
    group = bit_sets.members(members, 0)
    exchange.reduction(given, state, past, kept, use, kind, group, folds, starts, described)
    return True


@inner
def _move_apart(
    given: Given, state: State, past: History, kept: Storage, use: int, first: int, last: int, labels: Column,
    cells: Column,
) -> None:  # fmt: skip
    """Emit what labelled cells need as folds, and then copies."""
    folds, copies, described = validity.plan_pieces(given, state, cells, validity.pieces(given, labels), True)
    folds, starts = boxes.group(folds)
    for number in range(len(starts) - 1):
        block = folds[starts[number] : starts[number + 1]]
        emission.fold(given, state, past, kept, use, np.arange(first, last), block, described)
    copies, starts = boxes.group(copies)
    emission.copies(given, past, kept, use, copies, starts)


@leaf
def _leave(state: State, privilege: int) -> None:
    """Say who holds what after a use."""
    hold, waiting, need, _ = state
    for cell in range(len(hold)):
        if bit_sets.is_empty(need, cell):
            continue
        kept = privilege == READ and bit_sets.is_empty(waiting, cell)
        for word in range(hold.shape[1]):
            hold[cell, word] = (hold[cell, word] if kept else 0) | need[cell, word]
        for word in range(waiting.shape[1]):
            waiting[cell, word] = 0
