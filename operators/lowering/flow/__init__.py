"""Runs without a flush: how long what they write is read, in which regions it lies, and what they do beside passes.

May import what makes launches and regions; ``script`` and ``expansion`` import it. Start with ``lives``.
"""
