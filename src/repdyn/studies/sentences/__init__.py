"""What sentence vectors say: paraphrases, changes of one kind, and a collection of texts; see docs/anatomy.md."""

from repdyn.studies.sentences.study import EXAMPLES, HELP, add_options, run

__all__ = ["EXAMPLES", "HELP", "add_options", "run"]
