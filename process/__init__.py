"""This process and its system: errors, environment variables, heap, files, cores, signals held back, compiled code.

Imports nothing else of Maniple, and everything else may import it. ``environment`` is the only module that reads
variables, ``inventory`` the only one that asks the system what there is; ``error`` is the family of errors.
"""

from __future__ import annotations
