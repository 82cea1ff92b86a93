"""The runtime: how a program of launches becomes work on processors, on every rank at once.

Its rooms, each of which may import those above it:

    transports   how bytes reach another rank: sockets, shared memory, messages and their proof
    control      the world of ranks as one of them sees it, and its line to the launcher
    machine      what planning sees: hosts, memories, processors, links
    schedule     launches and rows as columns, what they cost, their order and their storage
    analysis     dependence analysis: from uses of regions to movements and waits
    observe      timelines and what is read off them
    devices      processors, streams and events; CUDA and its stand-in
    storage      instances, and the kernels that copy and fold them
    program      tasks, regions and launches as their author states them, and mappers
    lanes        a schedule bound to one rank, step by step, interpreted or compiled
    execution    the rank: replays, launches as they come, failures
    session      a program under way: traces, recordings, debugging
    cluster      the launcher: starts ranks, watches them, ends them

Start with ``session.session`` for a launch, with ``execution.replay`` for a step of a trainer, with
``cluster.run`` for `maniple run`.
"""
