"""What ranks import, and what is loaded at their first step: importing this module does it all at once.

The nursery of a host's ranks imports it before they are forked, so it is done once for all of them. Nothing here opens
a device or a socket, starts a thread, or draws a random number.
"""

from __future__ import annotations

from importlib import import_module

from maniple.memory_use import load_compiler

__all__: list[str] = []

for _module in (
    "maniple.models",
    "maniple.operators.library.dense.linear_kernels",
    "maniple.operators.library.elementwise.pointwise_kernels",
    "maniple.operators.library.losses.cross_entropy_kernels",
    "maniple.operators.library.losses.loss_kernels",
    "maniple.operators.library.windows.convolution_kernels",
    "maniple.operators.library.windows.pooling_kernels",
    "maniple.optim",
    "maniple.plugins",
    "maniple.program",
    "maniple.runtime.control.coordinator_client",
    "maniple.runtime.schedule.memory.packing",
    "maniple.runtime.transports.shared_counter",
    "maniple.runtime.transports.shared_or_sockets",
    "maniple.search_loop",
    "maniple.strategies.named.data_parallel",
    "maniple.trainer",
):
    import_module(_module)
load_compiler()
