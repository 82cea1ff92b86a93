"""The kernels of the operator library. Importing a module here imports torch."""
