"""Index spaces, partitions, privileges, and which copies and folds a use of a region needs. Pure values only."""

from __future__ import annotations

from maniple.regions.collective import Collective as Collective
from maniple.regions.collective import recognise as recognise
from maniple.regions.error import ManipleError as ManipleError
from maniple.regions.error import RequestError as RequestError
from maniple.regions.error import RunError as RunError
from maniple.regions.error import nearest as nearest
from maniple.regions.index_space import IndexSpace as IndexSpace
from maniple.regions.index_space import RectSet as RectSet
from maniple.regions.logical_region import LogicalRegion as LogicalRegion
from maniple.regions.partition import Partition as Partition
from maniple.regions.partition import Partitioning as Partitioning
from maniple.regions.partition import blocks as blocks
from maniple.regions.partition import halo as halo
from maniple.regions.partition import rectangles as rectangles
from maniple.regions.partition import replicate as replicate
from maniple.regions.privilege import READ as READ
from maniple.regions.privilege import READ_WRITE as READ_WRITE
from maniple.regions.privilege import WRITE_DISCARD as WRITE_DISCARD
from maniple.regions.privilege import Coherence as Coherence
from maniple.regions.privilege import Privilege as Privilege
from maniple.regions.privilege import ReductionOp as ReductionOp
from maniple.regions.privilege import reduce as reduce
from maniple.regions.rectangle import Rect as Rect
from maniple.regions.validity import Contribution as Contribution
from maniple.regions.validity import Copy as Copy
from maniple.regions.validity import Fold as Fold
from maniple.regions.validity import Movements as Movements
from maniple.regions.validity import Part as Part
from maniple.regions.validity import UnwrittenRead as UnwrittenRead
from maniple.regions.validity import Use as Use
from maniple.regions.validity import Validity as Validity
from maniple.regions.validity import interference as interference
