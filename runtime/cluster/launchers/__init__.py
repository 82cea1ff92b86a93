"""Launchers of hosts, by program: ssh, srun, mpirun.

May import the other modules of ``cluster``. Each builds command lines and no more: it says how an agent is started on
each host. Start with ``ssh``.
"""

from __future__ import annotations
