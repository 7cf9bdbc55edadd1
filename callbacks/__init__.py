"""Callbacks of Lightning and of the Hugging Face Trainer: when to measure. Import them as
``repdyn.callbacks``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if __name__ != "repdyn.callbacks":
    raise ImportError(
        f"these callbacks were imported as {__name__!r}; install the project (pip install -e .) "
        "and write 'from repdyn.callbacks import RepresentationDynamics'"
    )

from repdyn.utils.extras import lazy_names  # once the name of this package is known to be right

if TYPE_CHECKING:
    from repdyn.callbacks.hugging_face_trainer import HuggingFaceTracker
    from repdyn.callbacks.representation_dynamics import RepresentationDynamics
    from repdyn.callbacks.save_pretrained import SavePretrainedCheckpoint

__all__ = ["HuggingFaceTracker", "RepresentationDynamics", "SavePretrainedCheckpoint"]

# one framework does not load the other, and the entry point loads neither
__getattr__ = lazy_names(
    __name__,
    {
        "HuggingFaceTracker": "repdyn.callbacks.hugging_face_trainer",
        "RepresentationDynamics": "repdyn.callbacks.representation_dynamics",
        "SavePretrainedCheckpoint": "repdyn.callbacks.save_pretrained",
    },
)
