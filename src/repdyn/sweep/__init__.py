"""Measuring checkpoints that were published or saved before, through the same path as a live run."""
