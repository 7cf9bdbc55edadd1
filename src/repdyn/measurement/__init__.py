"""Measurement: a model, a probe and metrics become rows; live tracking and offline sweeps share
this path.

- :mod:`~repdyn.measurement.options`: what is measured, and how the model is run.
- :mod:`~repdyn.measurement.measure`: one checkpoint: forward passes, then layer after layer.
- :mod:`~repdyn.measurement.rows`: one layer: a row for each metric, subset and attention head.
- :mod:`~repdyn.measurement.estimates`: one row's value and interval from its batches.
- :mod:`~repdyn.measurement.probe_loss`: the model's loss on the probe, in rows without a layer.
"""
