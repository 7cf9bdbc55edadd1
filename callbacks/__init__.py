"""Callbacks of Lightning and of the Hugging Face Trainer: when to measure. Import them as ``repdyn.callbacks``."""

if __name__ != "repdyn.callbacks":
    raise ImportError(
        f"these callbacks were imported as {__name__!r}; install the project (pip install -e .) "
        "and write 'from repdyn.callbacks import RepresentationDynamics'"
    )

from repdyn.callbacks.hugging_face_trainer import HuggingFaceTracker
from repdyn.callbacks.representation_dynamics import RepresentationDynamics
from repdyn.callbacks.save_pretrained import SavePretrainedCheckpoint

__all__ = ["HuggingFaceTracker", "RepresentationDynamics", "SavePretrainedCheckpoint"]
