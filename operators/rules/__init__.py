"""Factor rules: how an operator may be cut, as one line of text, and the tiles that follow.

Pure; imports nothing of ``operators``. Start with ``rule``.
"""

from __future__ import annotations
