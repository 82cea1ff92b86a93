"""The operator library: one module per family, torch-free; their kernels are in ``maniple.operators.kernels``."""
