"""The terminal: what the user of a launcher is shown, and the signals by which the user asks it to end.

May import nothing of ``cluster``. Start with ``tee``: output of a rank, to the terminal and to a log file.
"""

from __future__ import annotations
