"""Import: an unmodified torch.nn.Module becomes a task graph.

May import ``proving`` and what lies below. Start with ``from_torch``.
"""
