"""Children: the rank processes of this host, and the nursery that they are forked from.

May import ``launcher`` and ``parent_death`` of ``cluster``. Start with ``child_process``, which stands for any child of
this process. ``nursery`` is this process's side of the nursery, and ``newborn`` a rank that comes from it;
``nursery_program`` is the nursery itself, and ``becoming`` how a fork of it becomes the program of a rank.
"""

from __future__ import annotations
