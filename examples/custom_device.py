"""A device of one's own: its memory is files, which the system writes to disk where main memory is short.

python examples/custom_device.py
maniple run --device file train.py      # once a package announces it, in its pyproject.toml:

    [project.entry-points."maniple.devices"]
    file = "custom_device:FileDevice"
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from math import prod

import torch

from maniple import RequestError
from maniple.plugins import DEVICES, HostDevice


class FileDevice(HostDevice):
    """The host's processors over memory of its own; copies and streams are the host's."""

    @classmethod
    def check(cls) -> None:
        """Refuse where no file can be made."""
        if not os.access(tempfile.gettempdir(), os.W_OK):
            raise RequestError(f"device file: {tempfile.gettempdir()} cannot be written; name a folder by TMPDIR")

    @classmethod
    def memory_bytes(cls) -> tuple[int, ...]:
        """Give what the disk has left."""
        return (shutil.disk_usage(tempfile.gettempdir()).free,)

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocate a file of its own for a tensor, once there is room."""
        return self.room.allocate(prod(shape) * dtype.itemsize, lambda: self._mapped(shape, dtype))

    @staticmethod
    def _mapped(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        count = prod(shape)
        with tempfile.NamedTemporaryFile() as file:  # has no name from then on, and goes with the tensor
            row = torch.from_file(file.name, shared=True, size=max(1, count), dtype=dtype)
        return row[:count].reshape(tuple(shape))


if __name__ == "__main__":
    from three_steps import compare

    DEVICES.register("file", FileDevice)
    compare(__file__, device="file")
