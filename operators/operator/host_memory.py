"""Memory of the host: where a body may look at values, to say what is wrong with them; elsewhere the host would wait.

A body on a device gives NaN for what the same body refuses on the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from maniple.runtime.storage.host_bytes import in_host_memory as in_host_memory


def as_plain(tensor: Tensor) -> Tensor:
    """A tensor as compiled kernels of the host take it, which stand in for those of a device where there is none."""
    return tensor.as_subclass(torch.Tensor)


def as_array(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
    """The array of such a tensor, which shares its memory."""
    return as_plain(tensor).numpy()
