"""Operators: what a network computes, how each operator may be split, and what a plan makes of it.

Its rooms, each of which may import those above it:

    rules           factor rules: one line of text says how an operator may be cut
    recording       what torch calls on a tile, and the function that makes these calls again
    operator        the interface of operators, and what their kernels share
    precision       operators in mixed precision, and the policy of torch.autocast
    training        optimizers
    library         the operators, family by family, kernels beside them
    graph           graphs of operators, written by hand or read from a file
    pipeline_order  orders of pipelines: which stage does what, in which turn
    plan            plans: how every operator of a graph is cut and placed
    lowering        from a graph and a plan to the launches of a step
    proving         rules proved against the operators that they describe; operators of users
    torch_import    graphs of torch modules

Start with ``rules.rule``, then ``library.dense.linear``, then ``lowering.expansion``.
"""
