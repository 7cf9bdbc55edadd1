"""Semantic convergence: how tokens approach what the last layer makes of them; see docs/convergence.md."""

from repdyn.studies.convergence.study import EXAMPLES, HELP, add_options, run

__all__ = ["EXAMPLES", "HELP", "add_options", "run"]
