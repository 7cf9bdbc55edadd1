"""A comparison of the kernels with other packages: run by ``benchmarks/kernel_comparison.py``."""
