"""Semantic convergence: how tokens approach their states at the last layer; see docs/convergence.md."""
