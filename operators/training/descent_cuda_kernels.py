"""Stochastic gradient descent on CUDA: one pass over value, gradient and momentum; torch's operations make several."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from maniple.operators.training.descent_kernels import heavy, nesterov, plain
from maniple.runtime.devices.cuda_kernels import DeviceArray, bind_launch, cuda, flat

if TYPE_CHECKING:
    from maniple.operators.training.optimizer import SGD


@cuda.jit
def _plain(value: Any, gradient: Any, lr: float, decay: float) -> None:
    for i in range(cuda.grid(1), value.size, cuda.gridsize(1)):
        value[i] = plain(value[i], gradient[i], lr, decay)


@cuda.jit
def _heavy(value: Any, gradient: Any, buffer: Any, lr: float, decay: float, momentum: float) -> None:
    for i in range(cuda.grid(1), value.size, cuda.gridsize(1)):
        value[i], buffer[i] = heavy(value[i], gradient[i], buffer[i], lr, decay, momentum)


@cuda.jit
def _nesterov(value: Any, gradient: Any, buffer: Any, lr: float, decay: float, momentum: float) -> None:
    for i in range(cuda.grid(1), value.size, cuda.gridsize(1)):
        value[i], buffer[i] = nesterov(value[i], gradient[i], buffer[i], lr, decay, momentum)


def bind_descent(
    optimizer: SGD,
    value: DeviceArray,
    gradient: DeviceArray,
    states: tuple[DeviceArray, ...],
    stream: object = 0,
) -> Callable[[], None]:
    """A function that updates a block in place; see ``SGD.bind_update``.

    Args:
        optimizer: The optimizer.
        value: Contiguous.
        gradient: Contiguous; only read.
        states: Contiguous, as ``SGD.state_names`` lists them.
        stream: Of numba.
    """
    arrays = tuple(flat(array) for array in (value, gradient, *states))
    kind = arrays[0].dtype.type  # a Python float would make the arithmetic double
    numbers = (kind(optimizer.lr), kind(optimizer.weight_decay))
    if not optimizer.momentum:
        return bind_launch(_plain, arrays[0].size, (*arrays, *numbers), stream)
    kernel = _nesterov if optimizer.nesterov else _heavy
    return bind_launch(kernel, arrays[0].size, (*arrays, *numbers, kind(optimizer.momentum)), stream)
