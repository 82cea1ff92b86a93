"""Index spaces, partitions, privileges, and which copies and folds a use of a region needs. Pure values only.

Names are loaded when they are first used: a privilege needs no arrays.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maniple.regions.collective import Collective as Collective
    from maniple.regions.collective import recognise as recognise
    from maniple.regions.index_space import IndexSpace as IndexSpace
    from maniple.regions.index_space import RectSet as RectSet
    from maniple.regions.logical_region import LogicalRegion as LogicalRegion
    from maniple.regions.movement import Contribution as Contribution
    from maniple.regions.movement import Copy as Copy
    from maniple.regions.movement import Fold as Fold
    from maniple.regions.movement import Merge as Merge
    from maniple.regions.movement import Movements as Movements
    from maniple.regions.movement import Part as Part
    from maniple.regions.movement import Use as Use
    from maniple.regions.partition import Partitioning as Partitioning
    from maniple.regions.partition import blocks as blocks
    from maniple.regions.partition import halo as halo
    from maniple.regions.partition import rectangles as rectangles
    from maniple.regions.partition import replicate as replicate
    from maniple.regions.partition import restriction as restriction
    from maniple.regions.partition import weights as weights
    from maniple.regions.privilege import READ as READ
    from maniple.regions.privilege import READ_WRITE as READ_WRITE
    from maniple.regions.privilege import WRITE_DISCARD as WRITE_DISCARD
    from maniple.regions.privilege import Coherence as Coherence
    from maniple.regions.privilege import Privilege as Privilege
    from maniple.regions.privilege import ReductionOp as ReductionOp
    from maniple.regions.privilege import reduce as reduce
    from maniple.regions.rectangle import Rect as Rect
    from maniple.regions.subspace import Partition as Partition
    from maniple.regions.validity import UnwrittenRead as UnwrittenRead
    from maniple.regions.validity import Validity as Validity
    from maniple.regions.validity import interference as interference

_HOMES: dict[str, tuple[str, ...]] = {
    "collective": (
        "Collective",
        "recognise",
    ),
    "index_space": (
        "IndexSpace",
        "RectSet",
    ),
    "logical_region": ("LogicalRegion",),
    "movement": (
        "Contribution",
        "Copy",
        "Fold",
        "Merge",
        "Movements",
        "Part",
        "Use",
    ),
    "partition": (
        "Partitioning",
        "blocks",
        "halo",
        "rectangles",
        "replicate",
        "restriction",
        "weights",
    ),
    "privilege": (
        "Coherence",
        "Privilege",
        "READ",
        "READ_WRITE",
        "ReductionOp",
        "WRITE_DISCARD",
        "reduce",
    ),
    "rectangle": ("Rect",),
    "subspace": ("Partition",),
    "validity": (
        "UnwrittenRead",
        "Validity",
        "interference",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        msg = f"module 'maniple.regions' has no attribute {name!r}"
        raise AttributeError(msg)
    found: object = getattr(import_module(f"maniple.regions.{_HOME[name]}"), name)
    globals()[name] = found
    return found
