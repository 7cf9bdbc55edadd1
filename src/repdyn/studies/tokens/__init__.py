"""Tokens against the vocabulary: how long a token's vector resembles its input embedding; see docs/tokens.md."""
