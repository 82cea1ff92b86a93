"""The transports by name, for ``--transport``: built-ins and those of other packages come through one door."""

from __future__ import annotations

from maniple.process.registry import Registry, class_check
from maniple.runtime.transports.transport import Transport

__all__: list[str] = []

DEFAULT = "shared"
"""What carries tiles where a launch does not say."""

_HINT = "see docs/extending.md, A transport"
_check = class_check("transport", Transport, _HINT, ("way",))  # type: ignore[type-abstract]

TRANSPORTS: Registry[type[Transport]] = Registry("transport", _check)
"""How tiles travel between ranks that are processes."""
