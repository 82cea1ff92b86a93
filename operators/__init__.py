"""Operators: factor rules, the operator library and its kernels, the operator graph, plans and their lowering."""
