"""How the estimates depend on the number of vectors: run by ``benchmarks/probe_size.py``."""
