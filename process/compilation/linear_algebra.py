"""numba's linear algebra: it asks for scipy's where it is first called, and not where numba is first used.

Whatever a process compiles first, numba imports scipy.linalg to see whether there is a BLAS: 120 modules, 19 MiB, which
no function here calls. This uses names of numba's that it does not document, as numba 0.68 has them.
"""

from __future__ import annotations

from importlib import import_module
from sys import modules

__all__: list[str] = []

ASKING, ASKED = "numba.np.arraymath", "numba.np.linalg"


def defer() -> None:
    """Have numba believe for now that scipy's BLAS is as it should be; whoever compiles a product has it looked at."""
    if ASKING in modules or "scipy" not in modules:  # it has looked, or there is none
        return
    asked = import_module(ASKED)
    looks = getattr(asked, "ensure_blas", None)
    if looks is None:  # a numba that asks otherwise
        return
    asked.ensure_blas = lambda: None  # type: ignore[attr-defined]
    try:
        import_module(ASKING)
    finally:
        asked.ensure_blas = looks  # type: ignore[attr-defined]
