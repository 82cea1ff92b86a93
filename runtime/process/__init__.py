"""This process and its system: environment variables, heap, files, cores, signals held back.

Imports nothing of the runtime. ``environment`` is the only module that reads variables, ``inventory`` the only one that
asks the system what there is.
"""

from __future__ import annotations
