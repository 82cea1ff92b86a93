"""Handlers: what writes each operator of torch into a graph.

May import the rest of ``torch_import``, ``library``, and what lies below. Each module enters its own into
``handler_table``. Start with ``arithmetic``.
"""
