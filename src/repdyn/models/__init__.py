"""Small encoders and decoders to pretrain."""

from repdyn.utils.extras import require

require("train", "repdyn.models", "transformers", "lightning")

# ruff: noqa: E402 -- says what is missing first
from repdyn.models.families import build_model, objective_of
from repdyn.models.language_model import LanguageModel

__all__ = ["LanguageModel", "build_model", "objective_of"]
