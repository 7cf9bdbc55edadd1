"""Capture: run any model on a probe and record the hidden states of every layer, without changing
the model.
"""
