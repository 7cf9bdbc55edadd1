"""Tokens against the vocabulary: what of its own input embedding a token's vector still shows; see docs/tokens.md."""

from repdyn.studies.tokens.study import EXAMPLES, HELP, add_options, run

__all__ = ["EXAMPLES", "HELP", "add_options", "run"]
