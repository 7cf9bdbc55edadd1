"""Attach the tracker to a script that does not mention it, by environment variables.

Lightning calls :func:`lightning_callbacks` for every Trainer, through the entry point
``lightning.pytorch.callbacks_factory``; a script with a Trainer of transformers passes
``callbacks=hugging_face_callbacks()``. Both attach nothing unless ``REPDYN_PROBE`` names a probe
file:

    REPDYN_PROBE=probe.safetensors REPDYN_SCHEDULE=1000 python their_script.py

======================
================================================================================================
``REPDYN_PROBE``        a file written by ``Probe.save``
``REPDYN_SCHEDULE``     ``1000``, ``0,10,100``, ``pythia`` (the default) or ``checkpoints``
``REPDYN_METRICS``      names separated by spaces; ``all`` for every one that the probe allows
``REPDYN_STORE``        folder or URL of the store
======================
================================================================================================
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from transformers import TrainerCallback

_PREFIX = "REPDYN_"


def lightning_callbacks() -> list[Callback]:
    """Return the tracker that the environment asks for, as a list; an empty one where it asks for
    none.

    Raises:
        ValueError, OSError: what it asks for cannot be had, which stops the script before its
        training.
    """
    if (settings := settings_of_environment()) is None:
        return []
    # only where it is asked for
    from repdyn.callbacks.representation_dynamics import (
        RepresentationDynamics,
    )

    return [RepresentationDynamics(**settings)]


def hugging_face_callbacks() -> list[TrainerCallback]:
    """Return the tracker for a ``transformers.Trainer``, as :func:`lightning_callbacks` does.

    Trainer(model, arguments, callbacks=hugging_face_callbacks())
    """
    if (settings := settings_of_environment()) is None:
        return []
    # only where it is asked for
    from repdyn.callbacks.hugging_face_trainer import (
        HuggingFaceTracker,
    )

    return [HuggingFaceTracker(**settings)]


def settings_of_environment() -> dict[str, Any] | None:
    """Return arguments of a tracker by the environment variables; None unless ``REPDYN_PROBE`` is
    set.

    Raises:
        ValueError: a value that cannot be read.
        OSError: the probe cannot be read.
    """
    path = os.environ.get(f"{_PREFIX}PROBE")
    if not path:
        return None
    from repdyn.probe import Probe  # with torch

    settings: dict[str, Any] = {"probe": Probe.load(path)}
    names = ("SCHEDULE", "METRICS", "STORE")
    schedule, metrics, store = (os.environ.get(f"{_PREFIX}{name}", "").strip() for name in names)
    if schedule:
        steps = [int(step) if step.strip().isdecimal() else step for step in schedule.split(",")]
        settings["schedule"] = steps if "," in schedule else steps[0]
    if metrics:
        settings["metrics"] = metrics if metrics == "all" else tuple(metrics.split())
    return settings | {"store": store} if store else settings
