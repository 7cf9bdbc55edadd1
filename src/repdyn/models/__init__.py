"""Small encoders and decoders to pretrain."""

from repdyn.models.families import build_model, objective_of
from repdyn.models.language_model import LanguageModel

__all__ = ["LanguageModel", "build_model", "objective_of"]
