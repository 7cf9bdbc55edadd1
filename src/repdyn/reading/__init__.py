"""Load a model and read its layers' states, attention weights and output head: what studies are made of."""

from repdyn.capture.attention import LENGTH, AttentionWeights
from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.capture import no_progress
from repdyn.capture.states import LayerStates
from repdyn.checkpoints.errors import CheckpointError, SweepStoppedError
from repdyn.reading.lookups import Lookup, TableKind, find_lookups, ordinary_tokens
from repdyn.reading.models import LoadedModel, checkpoints_of_run, file_name, load_model, load_models
from repdyn.reading.states import Model, attention_weights, causal_stacks, count_blocks, layer_states, output_head

__all__ = [
    "LENGTH",
    "AttentionWeights",
    "CheckpointError",
    "LayerPatterns",
    "LayerStates",
    "LoadedModel",
    "Lookup",
    "Model",
    "SweepStoppedError",
    "TableKind",
    "attention_weights",
    "causal_stacks",
    "checkpoints_of_run",
    "count_blocks",
    "file_name",
    "find_lookups",
    "layer_states",
    "load_model",
    "load_models",
    "no_progress",
    "ordinary_tokens",
    "output_head",
]
