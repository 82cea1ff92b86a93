"""The operator library: a folder for each family, kernels beside their operators; torch comes with a kernel alone.

May import ``operator`` and ``rules``. ``catalogue`` lists all operators by name.
"""
