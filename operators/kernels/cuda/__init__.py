"""The kernels that numba compiles for CUDA; their arithmetic is that of the CPU kernels. Import on use only."""
