"""Measuring checkpoints that were saved before, through the same path as a live run."""

from repdyn.sweep.local import find_checkpoints, sweep

__all__ = ["find_checkpoints", "sweep"]
