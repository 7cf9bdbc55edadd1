"""The anatomy of a model's embeddings: its tables, and what the blocks do to two sentences; see docs/anatomy.md."""

from repdyn.studies.anatomy.study import EXAMPLES, HELP, add_options, run

__all__ = ["EXAMPLES", "HELP", "add_options", "run"]
