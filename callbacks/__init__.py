"""Callbacks of Lightning and of the Hugging Face Trainer: when to measure. Import them as ``repdyn.callbacks``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ != "repdyn.callbacks":
    raise ImportError(
        f"these callbacks were imported as {__name__!r}; install the project (pip install -e .) "
        "and write 'from repdyn.callbacks import RepresentationDynamics'"
    )

from repdyn.utils.extras import with_extra  # once the name of this package is known to be right

if TYPE_CHECKING:
    from repdyn.callbacks.hugging_face_trainer import HuggingFaceTracker
    from repdyn.callbacks.representation_dynamics import RepresentationDynamics
    from repdyn.callbacks.save_pretrained import SavePretrainedCheckpoint

__all__ = ["HuggingFaceTracker", "RepresentationDynamics", "SavePretrainedCheckpoint"]

_HOMES = {
    "HuggingFaceTracker": "repdyn.callbacks.hugging_face_trainer",
    "RepresentationDynamics": "repdyn.callbacks.representation_dynamics",
    "SavePretrainedCheckpoint": "repdyn.callbacks.save_pretrained",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: one framework does not load the other, and the entry point loads neither."""
    if name in _HOMES:
        try:
            return getattr(import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            raise with_extra(error, f"repdyn.callbacks.{name}") or error from error
    raise AttributeError(f"module 'repdyn.callbacks' has no attribute {name!r}; it has {', '.join(__all__)}")
