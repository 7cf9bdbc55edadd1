"""Topic structure of finished models on real text; see docs/topics.md."""

from repdyn.studies.topics.study import EXAMPLES, HELP, add_options, run

__all__ = ["EXAMPLES", "HELP", "add_options", "run"]
