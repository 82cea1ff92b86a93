"""Turns: what takes turns with storage that outlives runs.

The rest of ``schedule`` may import it; of that it imports ``instance``.
"""
