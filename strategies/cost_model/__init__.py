"""Cost models: how long the tasks of a step take.

Imports nothing of ``strategies``. Start with ``cost_model``, the interface; ``measured`` times tasks here.
"""
