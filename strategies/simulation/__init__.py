"""The simulator: what a step under a plan would take, from scratch and by what a proposal changes.

May import ``timing`` and ``cost_model``. Start with ``simulation``.
"""
