"""Chained graphs: neighbouring operators that go over memory and that a plan maps alike, replaced by one operator.

    node                  degrees    processors             becomes    add+layer_norm
    add                   b=2        0 1
    layer_norm            b=2        0 1                    b=2 on 0 1: two results, of which others read the first

A pure rewriting of graph and plan, before composites are lowered: regions, tiles, saved values, rows and prices of what
it gives follow from the chain's rule as of any operator, in the run and in a simulation of the graph and plan that it
gives. Operators are chained where one reads what another gives, nobody between them in the graph's order reads what the
chain gives, and every part of one runs where the same part of the other does, so that nothing moves between them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.lowering.fusion.chain import Chain, Link, is_linked, needed, sources
from maniple.operators.lowering.fusion.chain_rule import chain_rule
from maniple.operators.rewriting.replacement import Replacement, joined_name, replaced
from maniple.operators.rules.configuration import OperatorPlan, StagePlan
from maniple.operators.rules.rule import Rule
from maniple.operators.rules.task_placement import processors_by_point

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import Node
    from maniple.operators.lowering.fusion.chain_rule import ChainRule
    from maniple.operators.plan.plan import Plan

__all__: list[str] = []

LONGEST = 16
"""So many links a chain has at most: what torch compiles of longer ones takes long."""


def chained(graph: Graph, plan: Plan, *, compiled: bool = True) -> tuple[Graph, Plan]:
    """Replace neighbouring operators that a plan maps alike by chains.

    Args:
        graph: the graph.
        plan: a configuration for every operator of it.
        compiled: whether torch compiles the chains' bodies.

    Returns:
        A graph and the plan for it; both as given where nothing is chained. Inputs, parameters, buffers and outputs
        keep their names.
    """
    chains = {joined_name(nodes): _chain(graph, plan, nodes, compiled=compiled) for nodes in _Chains(graph, plan).found}
    if not chains:
        return graph, plan
    # Of what runs under autocast nothing is chained.
    made = replaced(graph, [chain for chain, _ in chains.values()])
    operators = tuple(
        (node.name, chains[node.name][1] if node.name in chains else plan.operator(node.name)) for node in made.nodes
    )
    renamed = {node.name: name for name, (chain, _) in chains.items() for node in chain.nodes}
    stages = tuple(
        StagePlan(tuple(dict.fromkeys(renamed.get(name, name) for name in stage.operators))) for stage in plan.stages
    )
    return made, replace(plan, operators=operators, stages=stages)


def chain_of(graph: Graph, plan: Plan, operator: str) -> str:
    """The chain that an operator is in under a plan, or why it is in none."""
    chains, node = _Chains(graph, plan), graph.node(operator)
    chain = next((nodes for nodes in chains.found if node in nodes), None)
    return f"none: {chains.reasons[node.id]}" if chain is None else joined_name(chain)


@final
class _Chains:
    """The chains of a graph under a plan.

    Args:
        graph: the graph.
        plan: the plan.
    """

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self._graph, self._plan = graph, plan
        self._stages = {name: number for number, stage in enumerate(plan.stages) for name in stage.operators}
        self.found: list[tuple[Node, ...]] = []
        self.reasons: dict[int, str] = {}
        """By operator what speaks against a chain with those before it; nothing where it begins one."""
        group: list[Node] = []
        for node in graph.nodes:
            reads = {tensor for each in group for tensor in each.results}.intersection(node.operands)
            against = self._against(group, node) if reads else "nothing before it that it reads may be a link"
            self.reasons[node.id] = against
            if reads and not against:
                group.append(node)
            elif self._is_link(node):
                self._close(group)
                group = [node]
            elif reads:
                self._close(group)
                group = []
            else:
                self.reasons[node.id] = self._no_link(node)
        self._close(group)

    def _close(self, group: Sequence[Node]) -> None:
        if len(group) > 1:
            self.found.append(tuple(group))

    def _is_link(self, node: Node) -> bool:
        operator, graph = node.operator, self._graph
        factors = [factor.name for factor in graph.bound(node).factors]
        return (
            len(node.results) == 1
            and node.results[0] != graph.loss_tensor
            and node.name not in graph.autocast
            and is_linked(operator, factors)
            and operator.rearrangement(graph.tensors[node.operands[0] or 0].shape, graph.tensors[node.results[0]].shape)
            is None
        )

    def _no_link(self, node: Node) -> str:
        apart = node.name in self._graph.autocast
        return f"it is no link: it {'runs under autocast' if apart else 'multiplies, moves, draws or picks'}"

    def _against(self, group: Sequence[Node], node: Node) -> str:
        """What speaks against an operator as the next link; "" where nothing does."""
        if not self._is_link(node):
            return self._no_link(node)
        nodes = [*group, node]
        if len(nodes) > LONGEST:
            return f"the chain before it has {LONGEST} links"
        if sum(bool(self._graph.bound(each).rule.saved) for each in nodes) > 1:
            return "two links would save values"
        if len({self._stages.get(each.name) for each in nodes}) > 1:
            return "another stage"
        operands, results = _ends(self._graph, nodes)
        rule = chain_rule(self._graph, nodes, operands, results)
        if rule is None:
            return "no rule for both"
        shapes = tuple(self._graph.tensors[tensor].shape for tensor in operands)
        if _configuration(self._graph, self._plan, nodes, rule, shapes) is None:
            return "split or placed otherwise than the chain before it"
        return ""


def _ends(graph: Graph, nodes: Sequence[Node]) -> tuple[list[int], list[int]]:
    """The tensors that some operators read of others, and those that they give: to others, or to their own backward."""
    made = {tensor: None for node in nodes for tensor in node.results}
    numbers = {node.id for node in nodes}
    read = {operand for node in graph.nodes if node.id not in numbers for operand in node.operands}
    read.update((*graph.outputs.values(), *graph.assignments.values()))
    operands = {operand: None for node in nodes for operand in node.operands if operand is not None}
    given = [each for each in operands if each not in made]
    links = _links(nodes, given)
    gives = [place for place, tensor in enumerate(made) if tensor in read]
    sizes = [prod(graph.tensors[tensor].shape) for tensor in given]
    own = [prod(graph.tensors[tensor].shape) for tensor in made]
    for value in [value for value in needed(links) if value < 0]:
        large = [end for end in sources(links, gives, value) if (sizes[end] if end >= 0 else own[~end]) >= own[~value]]
        if len(large) > 1:
            gives.append(~value)
    values = list(made)
    return given, [values[place] for place in sorted(gives)]


def _configuration(
    graph: Graph, plan: Plan, nodes: Sequence[Node], rule: ChainRule, shapes: tuple[tuple[int, ...], ...]
) -> OperatorPlan | None:
    """How a chain is split and placed; None where its links are not alike.

    Args:
        graph: the graph.
        plan: the plan.
        nodes: the links.
        rule: of the chain.
        shapes: of its operands.
    """
    bound = Rule.parse(rule.text, saved=rule.saved).bind(shapes)
    order = [factor.name for factor in bound.factors]
    configs = [plan.operator(node.name) for node in nodes]
    degrees: dict[str, int] = {}
    for place, (node, config) in enumerate(zip(nodes, configs, strict=True)):
        own = dict(config.degrees)
        for factor in graph.bound(node).factors:
            name, degree = rule.names[place, factor.name], own.get(factor.name, 1)
            if degrees.setdefault(name, degree) != degree:
                return None
    splittable = {factor.name for factor in bound.factors if factor.splittable}
    split = [name for name in order if degrees[name] > 1]
    if not splittable.issuperset(split) or len({(each.replicas, each.recompute) for each in configs}) > 1:
        return None
    grids = [_grid(graph, place, nodes[place], configs[place], rule, split) for place in range(len(nodes))]
    first = grids[0]
    if first is None or any(grid is None or not np.array_equal(grid, first) for grid in grids):
        return None
    made = tuple((name, degrees[name]) for name in order)
    return OperatorPlan(made, tuple(first.ravel().tolist()), configs[0].replicas, configs[0].recompute)


def _grid(
    graph: Graph, place: int, node: Node, config: OperatorPlan, rule: ChainRule, split: Sequence[str]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None:
    """The processors of a link's tasks, by the part of each factor that the chain splits, and by replica."""
    own, factors = dict(config.degrees), [factor.name for factor in graph.bound(node).factors]
    names = [rule.names[place, factor] for factor in factors]
    if not set(names).issuperset(split):
        return None
    processors = processors_by_point(config)
    shaped = processors.reshape([own.get(factor, 1) for factor in factors] + [processors.shape[1]])
    axes = [names.index(name) for name in split]
    rest = [axis for axis in range(len(names)) if axis not in axes]
    turned: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = shaped.transpose([*rest, *axes, len(names)])
    return turned.reshape([own.get(factors[axis], 1) for axis in axes] + [processors.shape[1]])


def _chain(graph: Graph, plan: Plan, nodes: Sequence[Node], *, compiled: bool) -> tuple[Replacement, OperatorPlan]:
    """A chain in place of its links, and its configuration."""
    operands, results = _ends(graph, nodes)
    rule = chain_rule(graph, nodes, operands, results)
    shapes = tuple(graph.tensors[tensor].shape for tensor in operands)
    config = None if rule is None else _configuration(graph, plan, nodes, rule, shapes)
    if rule is None or config is None:
        msg = f"{joined_name(nodes)}: no chain"
        raise TypeError(msg)
    made = [node.results[0] for node in nodes]
    gives = tuple(made.index(tensor) for tensor in results)
    dtypes = tuple(graph.tensors[tensor].dtype for tensor in results)
    chain = Chain(_links(nodes, operands), gives, rule.text, dtypes, rule.saved, compiled)
    return Replacement(tuple(nodes), chain, tuple(operands), (), tuple(results)), config


def _links(nodes: Sequence[Node], operands: Sequence[int]) -> tuple[Link, ...]:
    """Some operators as links."""
    places: dict[int | None, int | None] = {None: None}
    places |= {tensor: place for place, tensor in enumerate(operands)}
    places |= {node.results[0]: ~place for place, node in enumerate(nodes)}
    return tuple(Link(node.operator, tuple(places[operand] for operand in node.operands)) for node in nodes)
