"""Vectors of sentences: paraphrases, changes of one kind, and a collection of texts; see docs/anatomy.md."""
