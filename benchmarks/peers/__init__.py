"""The kernels of repdyn beside other packages that compute the same: run by ``benchmarks/kernel_comparison.py``."""
