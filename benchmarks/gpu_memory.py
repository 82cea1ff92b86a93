"""The memory check of ``gpu_checks.py``: the most that a step takes on the device, beside torch's own."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import torch
from gpu_networks import Net
from gpu_steps import SGD, Bench, Line, made, on, torch_step, tried

import maniple as mp
from maniple.runtime.control.world import World
from maniple.runtime.observe.peak import Peak, measure_peak


def memory(bench: Bench) -> Iterator[Line]:
    """The most that a step takes, beside torch's on the same device."""
    for name, net in bench.nets().items():
        yield tried({"net": name, "batch": net.sizes[1]}, lambda net=net: _peaks(bench, net))  # type: ignore[misc]


def _peaks(bench: Bench, net: Net) -> Line:
    """The most that steps of ours and of torch take on the device, by the same allocator and in the same arithmetic.

    What libraries keep for a stream was there before, of both.
    """
    graph, batch, module = made(net, net.sizes[1])

    def program(world: World) -> Line:
        plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel")
        with mp.Trainer(graph, plan, optimizer=SGD, world=world) as trainer:
            before = trainer.memory()[0]
            for _ in range(3):
                trainer.step(*batch)
            return {"predicted_before": before["predicted"], **trainer.memory()[0]}

    (line,) = on(bench, 1, program)
    if bench.device != "cuda":
        return line
    gc.collect()
    torch.cuda.empty_cache()
    left = torch.cuda.memory_allocated()
    theirs = _peak_of_torch(module, batch)
    ratios = {"over_torch": line["devices"] / theirs.devices, "reserved_over_torch": line["reserved"] / theirs.reserved}
    free, total = torch.cuda.mem_get_info()
    beside = total - free - torch.cuda.memory_reserved()  # contexts, libraries' code, and what other processes have
    told = {"torch": theirs.devices, "torch_reserved": theirs.reserved, "left_by_ours": left, "beside_torch": beside}
    return line | told | ratios | {"devices_over_predicted": line["devices"] / line["predicted"]}


def _peak_of_torch(module: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> Peak:
    """The most that three steps of torch take, with TF32 off, as our plans have it unless they say otherwise."""
    switches = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        torch.mm(torch.ones(1, 1, device="cuda"), torch.ones(1, 1, device="cuda"))
        with measure_peak(devices=[torch.device("cuda")]) as most:
            module.cuda()
            descent = torch.optim.SGD(module.parameters(), 0.05, 0.9)
            near = tuple(tensor.cuda() for tensor in batch)
            for _ in range(3):
                torch_step(module, descent, near)
            return most()
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = switches
