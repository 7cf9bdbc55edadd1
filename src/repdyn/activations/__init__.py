"""Load a model and read its layers' states, attention weights and output head: what studies are
made of.
"""

from repdyn.activations.lookups import Lookup as Lookup
from repdyn.activations.lookups import TableKind as TableKind
from repdyn.activations.lookups import find_lookups as find_lookups
from repdyn.activations.lookups import ordinary_tokens as ordinary_tokens
from repdyn.activations.models import LoadedModel as LoadedModel
from repdyn.activations.models import checkpoints_of_run as checkpoints_of_run
from repdyn.activations.models import file_name as file_name
from repdyn.activations.models import load_model as load_model
from repdyn.activations.models import load_models as load_models
from repdyn.activations.states import Model as Model
from repdyn.activations.states import attention_weights as attention_weights
from repdyn.activations.states import causal_stacks as causal_stacks
from repdyn.activations.states import count_blocks as count_blocks
from repdyn.activations.states import layer_states as layer_states
from repdyn.activations.states import output_head as output_head
from repdyn.capture.attention import LENGTH as LENGTH
from repdyn.capture.attention import AttentionWeights as AttentionWeights
from repdyn.capture.blocks import LayerPatterns as LayerPatterns
from repdyn.capture.states import LayerStates as LayerStates
from repdyn.checkpoints.errors import CheckpointError as CheckpointError
from repdyn.checkpoints.errors import SweepStoppedError as SweepStoppedError
