"""What is used of torch that it does not document: all of it is named here, and nowhere else.

Checked with torch 2.13, and with no other but 2.11, the oldest that is taken: imports and operators on CPUs, and all on
GPUs. Where a release lacks a name, what uses it does without, or says so.
"""

# pyright: reportPossiblyUnboundVariable=false, reportPrivateImportUsage=false
# (torch's own names are used only where HEARS says that they are there)

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode

try:
    from torch.autograd import (  # type: ignore[attr-defined]
        _disable_profiler_legacy,
        _enable_profiler,
        _enable_profiler_legacy,
        _profiler_enabled,
    )
    from torch.autograd.profiler_legacy import profile
except ImportError:  # a release of torch without them
    HEARS = False
else:
    HEARS = True

try:
    from torch.autograd.graph import _engine_run_backward
except ImportError:  # a release of torch that goes back in another way
    _engine_run_backward = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

__all__: list[str] = []


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What hears of calls below autograd.

    torch's compiler is not told to pass it over: it never sees one, and is imported to be told, which takes a second.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


Overload = torch._ops.OpOverload  # noqa: SLF001
"""What an exported program calls: an operator of ``torch.ops``, of one signature."""


def schema_of(target: Overload) -> Any:
    """The schema of an operator: the only way to the names of its arguments."""
    return target._schema  # noqa: SLF001


def is_composite(target: Overload) -> bool:
    """Whether torch computes an operator, and its gradient, by calling others."""
    return target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)  # noqa: SLF001


def fused_descent() -> Any:
    """The update of several parameters by gradient descent in one pass over memory each; None where torch has none."""
    return getattr(torch, "_fused_sgd_", None)


def gradients_of(
    values: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    """As ``torch.autograd.grad``, with `allow_unused`, which first imports sympy to compare shapes.

    That import is half a second of every rank's start.
    """
    every = (*values, *wanted, *given)
    if has_torch_function(every):  # a mode that hears of functions hears of this one, and of none in it
        return handle_torch_function(gradients_of, every, values, wanted, given)
    alike = all(
        (value.shape, value.dtype, value.device) == (gradient.shape, gradient.dtype, gradient.device)
        for value, gradient in zip(values, given, strict=True)
    )
    if _engine_run_backward is None or not alike:  # where torch says what is wrong, if that is wrong
        return torch.autograd.grad(values, wanted, given, allow_unused=True)
    return _engine_run_backward(tuple(values), tuple(given), False, False, tuple(wanted), True, accumulate_grad=False)


@cache
def out_variant(target: Overload, device: str) -> tuple[Overload, tuple[str, ...]] | None:
    """The operator that writes the same to given memory, and the names of what it is given for each result.

    None where torch has none, or makes one for that kind of device of the operator itself and a copy.
    """
    wanted = target._schema  # noqa: SLF001
    given = [(argument.name, str(argument.type)) for argument in wanted.arguments]
    key = getattr(torch._C.DispatchKey, device.upper(), None)  # noqa: SLF001
    for name in target.overloadpacket.overloads():
        other = getattr(target.overloadpacket, name)
        arguments = other._schema.arguments  # noqa: SLF001
        outs = tuple(argument.name for argument in arguments if argument.is_out)
        own = [(argument.name, str(argument.type)) for argument in arguments if not argument.is_out]
        fits = len(outs) == len(wanted.returns) > 0 and own == given
        if fits and key is not None and other.has_kernel_for_dispatch_key(key):
            return other, outs
    return None


def memory_of(tensor: torch.Tensor) -> int:
    """The memory that a tensor is a view of: a number that two tensors share if they do; also where none is."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001


def memoryless(*, takes_others: bool = False) -> AbstractContextManager[object]:
    """A context in which new tensors have a shape and a device, and no memory; its import takes a second.

    Args:
        takes_others: Whether operators may have operands that have memory as well.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=takes_others)


def known_values(tensor: torch.Tensor) -> list[Any] | float | None:
    """The values of a tensor that has no memory, where torch knows them: it was made of numbers in the code."""
    from torch.utils._python_dispatch import _disable_current_modes

    held = getattr(tensor, "constant", None)
    if held is None:
        return None
    with _disable_current_modes():
        return cast("list[Any] | float", held.tolist())


@contextmanager
def masks_without_values() -> Iterator[None]:
    """A stretch in which torch's Transformer believes what it is told of its masks, and does not look at them.

    It compares a mask with the causal one to take a faster kernel, and an export has no values to compare. The mask
    itself is used either way, so results are the same. Changes all of the process, as an export does.
    """
    transformer = torch.nn.modules.transformer
    looks = transformer._detect_is_causal_mask  # noqa: SLF001

    def believes(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:  # noqa: FBT001
        return is_causal is True

    transformer._detect_is_causal_mask = believes  # noqa: SLF001
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = looks  # noqa: SLF001


@contextmanager
def states_of_lstms() -> Iterator[None]:
    """A stretch in which torch exports an LSTM's last states in the shape in which the layer gives them.

    torch 2.11 leaves a dimension of one element in front of each layer's, for which all that reads them is then
    exported. Changes all of the process, as an export does.
    """
    from torch._decomp import decompositions as found

    decompositions: Any = found
    layer = decompositions.one_layer_lstm

    def in_shape(*given: Any, **named: Any) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        sequence, states = layer(*given, **named)
        return sequence, tuple(state.squeeze(0) if state.ndim > 2 else state for state in states)

    decompositions.one_layer_lstm = in_shape
    try:
        yield
    finally:
        decompositions.one_layer_lstm = layer


def gloo_group(store: Any, rank: int, size: int, interface: str) -> Any:
    """A group of torch.distributed that binds to one address of this host, and waits for as long as it takes."""
    gloo: Any = torch.distributed.ProcessGroupGloo
    options = gloo._Options()  # noqa: SLF001
    options._devices = [gloo.create_device(hostname=interface)]  # noqa: SLF001
    options._timeout = timedelta(days=365)  # noqa: SLF001
    return gloo(store, rank, size, options)


def nccl_group(store: Any, rank: int, size: int, device: torch.device) -> Any:
    """A group of NCCL whose members are connected: without that the first call would wait for all of them."""
    nccl: Any = torch.distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timedelta(days=365)  # noqa: SLF001
    group = nccl(store, rank, size, options)
    with torch.cuda.device(device):
        collective(group, rank, "all_reduce", torch.zeros(1, device=device), "+", 0).wait()
        torch.cuda.current_stream(device).synchronize()
    return group


_NOBODY_SENDS = 0x7FFF
"""A tag that no message has."""


def collective(group: Any, place: int, kind: str, row: torch.Tensor, op: str, root: int) -> Any:
    """Begin a collective of a group's backend, in place; gives the work that can be waited for.

    Args:
        group: a backend of torch.distributed.
        place: this process's place in it.
        kind: ``all_reduce``, ``reduce_scatter``, ``all_gather`` or ``broadcast``.
        row: of one axis, with a block for each member.
        op: ``+``, ``*``, ``min`` or ``max``; "" where nothing is folded.
        root: of a broadcast.
    """
    c10d: Any = torch.distributed.distributed_c10d
    own = row.view(group.size(), -1)[place] if kind in {"reduce_scatter", "all_gather"} else row
    operation: Any = {"": None, "+": "SUM", "*": "PRODUCT", "min": "MIN", "max": "MAX"}[op]
    folded = None if operation is None else getattr(c10d.ReduceOp, operation)
    if kind == "all_reduce":
        options = c10d.AllreduceOptions()
        options.reduceOp = folded
        return group.allreduce([row], options)
    if kind == "reduce_scatter":
        options = c10d.ReduceScatterOptions()
        options.reduceOp = folded
        return group._reduce_scatter_base(own, row, options)  # noqa: SLF001
    if kind == "all_gather":
        return group._allgather_base(row, own, c10d.AllgatherOptions())  # noqa: SLF001
    options = c10d.BroadcastOptions()
    options.rootRank, options.rootTensor = root, 0
    return group.broadcast([row], options)


def cut_group(group: Any, place: int) -> None:
    """Cut the connections of a group of Gloo: what is under way there breaks, on all its members.

    Its own `abort` leaves collectives waiting, and with them whoever lets go of the group. A wait with a limit that is
    over cuts all of a group's connections.
    """
    with suppress(RuntimeError):  # which also says that they were cut before
        group.recv([torch.empty(1)], 0 if place else 1, _NOBODY_SENDS).wait(timedelta(milliseconds=1))


def only_saves(function: object) -> bool:
    """Whether an autograd function is the one by which torch's checkpoints keep inputs: it adds nothing to backward."""
    from torch.utils import checkpoint

    return function is getattr(checkpoint, "_NoopSaveInputs", None)


def has_gradient_hook(tensor: torch.Tensor) -> bool:
    """Whether torch calls something with a tensor's gradient."""
    return any(getattr(tensor, held, None) for held in ("_backward_hooks", "_post_accumulate_grad_hooks"))


def is_profiled() -> bool:
    """Whether this thread has a profiler; only where `HEARS`."""
    return bool(_profiler_enabled())


def begin_profile() -> None:
    """Give this thread the profiler that hears of allocations; only where `HEARS`."""
    profile(profile_memory=True).__enter__()  # type: ignore[no-untyped-call]


def end_profile() -> Sequence[Any]:
    """End it; gives for each thread what happened, in order, which the profiler itself drops. Only where `HEARS`."""
    return cast("Sequence[Any]", _disable_profiler_legacy())


def begins_profile(called: object) -> bool:
    """Whether a function is one that gives a thread a profiler; only where `HEARS`."""
    return called is _enable_profiler or called is _enable_profiler_legacy


def current_stream_number(device: int) -> int:
    """The stream that this thread puts work into on a CUDA device; making an object of it would take 7 us."""
    return int(torch._C._cuda_getCurrentRawStream(device))  # noqa: SLF001


@contextmanager
def on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Put this thread's work into a stream, inside; ``torch.cuda.stream`` does so in 17 us, and this in 3."""
    here = torch._C  # noqa: SLF001
    if here._cuda_getDevice() != stream.device_index:  # noqa: SLF001
        with torch.cuda.stream(stream):
            yield
        return
    before, index, kind = here._cuda_getCurrentStream(stream.device_index)  # noqa: SLF001
    here._cuda_setStream(stream_id=stream.stream_id, device_index=index, device_type=stream.device_type)  # noqa: SLF001
    try:
        yield
    finally:
        here._cuda_setStream(stream_id=before, device_index=index, device_type=kind)  # noqa: SLF001


def leave_capture(device: torch.device, pool: Any) -> None:
    """Undo what beginning a capture has done, once the driver has refused it: torch ends only what went well.

    Until then its allocator gives the stream memory of the graph's pool alone, and its generator takes draws for those
    of the graph.

    Args:
        device: a CUDA device.
        pool: the handle of the graph's pool.
    """
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)  # noqa: SLF001
    if end is not None:
        with suppress(RuntimeError):  # it was ended
            end(device.index, pool)
    generator = torch.cuda.default_generators[device.index]
    generator.graphsafe_set_state(generator.clone_state())


def allow_tf32_in_convolutions(allowed: bool) -> None:  # noqa: FBT001  (the flag is all that there is)
    """Switch TF32 in cuDNN on or off, also where torch's own tests were imported and its property refuses."""
    torch._C._set_cudnn_allow_tf32(allowed)  # noqa: SLF001


def compiled_by_inductor(
    module: torch.fx.GraphModule, examples: Sequence[torch.Tensor], cores: int
) -> Callable[..., object]:
    """A graph of torch's as a function of tensors that lie as the examples do, compiled by torch's inductor.

    Without what looks at each call whether they do, and without processes that compile beside this one.

    Args:
        module: the graph.
        examples: of its operands; what is compiled is tried on none.
        cores: that the function may use.
    """
    options = {"compile_threads": 1, "cpp.threads": cores}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what torch calls of its own that it has deprecated
        import torch._inductor as inductor

        return cast("Callable[..., object]", inductor.compile(module, list(examples), options=options))


def missing_compiler() -> str:
    """Why torch's inductor has no compiler for CPUs here; "" where it has one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch._inductor.cpp_builder import get_cpp_compiler

            get_cpp_compiler()
    except Exception as error:  # noqa: BLE001  (torch has several, and names none)
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return ""
