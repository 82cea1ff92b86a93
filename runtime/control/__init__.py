"""The control plane as one rank sees it: its world, its line to the launcher, its exit.

May import ``transports`` and ``process``. Start with ``world``: it joins the ranks of a run.
"""

from __future__ import annotations
