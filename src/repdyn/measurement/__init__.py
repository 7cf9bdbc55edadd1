"""Measurement: a model, a probe and metrics become rows; live tracking and offline sweeps share
this path.
"""
