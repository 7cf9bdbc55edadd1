"""Checkpoints that were published or saved: where they come from, what is wrong with them, and
their measurement.
"""
