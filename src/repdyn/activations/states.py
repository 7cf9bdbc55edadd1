"""Read a model: the states of its layers, its attention weights, its output head."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from torch import nn

from repdyn.activations.models import LoadedModel
from repdyn.capture import attention
from repdyn.capture import output_head as heads
from repdyn.capture.attention import LENGTH, TOKENS, AttentionWeights
from repdyn.capture.blocks import LayerPatterns, find_blocks
from repdyn.capture.calls import as_batch
from repdyn.capture.capture import capture, causality
from repdyn.capture.heads import QueriesAndKeys
from repdyn.capture.model import RunnableModel
from repdyn.capture.output_head import OutputHead
from repdyn.capture.states import CaptureKind, States
from repdyn.capture.trial import prepare
from repdyn.checkpoints.errors import model_errors
from repdyn.probe import Design, Probe, ProbeBatch
from repdyn.probe.design import MIN_BATCH_VECTORS

Model: TypeAlias = nn.Module | LoadedModel
Tokens: TypeAlias = Probe | Sequence[Sequence[int]]
"""A probe, or the token ids of one or several sequences, special tokens included."""


def layer_states(
    model: Model,
    tokens: Tokens,
    layers: LayerPatterns = None,
    *,
    subsets: Sequence[str] = ("all",),
    captures: Collection[CaptureKind] = (),
) -> States:
    """Run a model over tokens and return the states of every layer.

    Iterate over the result: each layer has ``states``, (n_tokens, dim) in the model's dtype and on
    its device, its ``index`` (0 is what enters the first block, l the output of block l) and its
    ``stack`` (None, or its name in a model of several stacks). Memory is freed from layer to
    layer; to read them twice, keep ``list(states)``.

    Args:
        model: from :func:`repdyn.load_model`, or any module built of a list of blocks; left as it
            was found.
        tokens: sequences of token ids, all of whose tokens are read, row after row; or a
            :class:`repdyn.Probe`, of which the tokens of ``subsets`` are: token number t is row
            ``states.rows_of([t])``.
        layers: name pattern of the blocks, such as "model.layers.*"; None finds them.
        subsets: of a probe.
        captures: what to capture besides: "after_attention" (``layer.after_attention``, the states
            between a block's attention and its feed-forward part, or why there are none),
            "queries_and_keys" (``layer.queries_and_keys``, what the attention compares, as
            ``queries`` and ``keys``, (n_tokens, n_heads * dim), or why they are not known) and
            "embeddings" (``states.embeddings``, the table of input embeddings, (vocabulary, dim),
            or why it is not known).

    Raises:
        ValueError: an empty sequence, or a module whose blocks are not found.
        CheckpointError: a loaded model that cannot be run.

    Example:
        >>> import repdyn
        >>> from transformers import GPT2Config, GPT2Model
        >>> model = GPT2Model(GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2))
        >>> [(layer.index, tuple(layer.states.shape)) for layer in repdyn.layer_states(model, [[5,
        ...     6, 7], [8, 9]])]
        [(0, (5, 16)), (1, (5, 16)), (2, (5, 16))]
    """
    if isinstance(tokens, Probe):
        return _states_of_probe(model, tokens, layers, subsets, captures)
    states = _states_of_probe(model, sequences_probe(tokens), layers, ("all",), captures)
    # the probe samples the tokens in an order of its own, and may repeat the last sequence
    numbers = np.arange(sum(map(len, tokens)))
    rows = states.rows_of(numbers)
    in_order = []
    for layer in states.layers:
        # a string is the reason why there are no such states
        after = layer.after_attention
        after = after[rows] if isinstance(after, torch.Tensor) else after
        compared = layer.queries_and_keys
        if isinstance(compared, QueriesAndKeys):
            compared = replace(compared, queries=compared.queries[rows], keys=compared.keys[rows])
        in_order.append(
            replace(
                layer, states=layer.states[rows], after_attention=after, queries_and_keys=compared
            )
        )
    return replace(states, layers=in_order, rows=numbers)


def _states_of_probe(
    model: Model,
    probe: Probe,
    layers: LayerPatterns,
    subsets: Sequence[str],
    captures: Collection[CaptureKind],
) -> States:
    """Return the states of a model's layers, of its only stack where a loaded model names one."""
    with _prepared(model, probe, layers) as prepared:
        states = capture(prepared, probe, subsets, captures=captures)
    stack = model.stack if isinstance(model, LoadedModel) else None
    if stack is None:
        return states
    return replace(states, layers=[layer for layer in states.layers if layer.stack == stack])


def attention_weights(
    model: Model, tokens: Tokens, layers: LayerPatterns = None, *, n_tokens: int = TOKENS
) -> AttentionWeights:
    """Run a model over sequences, one by one, and return the attention weights of every layer and
    head.

    ``weights.of(stack, layer)`` lists, for each sequence, the weights (heads, n, n) from each
    position to each, and the numbers of its tokens (n,). It raises
    :class:`repdyn.kernels.UndefinedError` for a layer without weights.

    Args:
        model: as for :func:`repdyn.layer_states`.
        tokens: sequences of token ids, or a :class:`repdyn.Probe`. The first 256 tokens of each
            sequence are read.
        layers: as for :func:`repdyn.layer_states`.
        n_tokens: of a probe, total number of tokens, from the first sequence on.

    Raises:
        ValueError, CheckpointError: as for :func:`repdyn.layer_states`.

    Example:
        >>> import repdyn
        >>> from transformers import GPT2Config, GPT2Model
        >>> model = GPT2Model(GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2))
        >>> [(weights, numbers)] = repdyn.attention_weights(model, [[5, 6, 7]]).of(None, 1)
        >>> weights.shape, numbers
        (torch.Size([2, 3, 3]), array([0, 1, 2]))
    """
    if isinstance(tokens, Probe):
        probe = tokens
    else:
        probe = sequences_probe(tokens)
        n_tokens = sum(len(sequence[:LENGTH]) for sequence in tokens)
    with _prepared(model, probe, layers) as prepared:
        return attention.attention_weights(prepared, probe, n_tokens=n_tokens)


def output_head(model: Model, ids: Sequence[int], layers: LayerPatterns = None) -> OutputHead:
    """Return the function that maps states of the last block, (n, dim), to the model's logits, (n,
    vocabulary).

    Args:
        model: with its head, as ``load_model(..., with_head=True)`` or ``AutoModelForCausalLM``
            loads it.
        ids: tokens on which the head is tried: it must reproduce the model's own logits.
        layers: as for :func:`repdyn.layer_states`.

    Raises:
        ValueError: the model has no head, or none that reproduces its logits by itself.
        CheckpointError: as for :func:`repdyn.layer_states`.

    Example:
        >>> import repdyn
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2))
        >>> *_, last = repdyn.layer_states(model, [[5, 6, 7]])
        >>> repdyn.output_head(model, [5, 6, 7])(last.states).shape
        torch.Size([3, 64])
    """
    if isinstance(model, LoadedModel) and model.with_head is None:
        raise ValueError(
            f"expected a model with a language-modelling head, got {model.name}: its configuration "
            "names none, or the checkpoint lacks its weights"
        )
    sequence = torch.tensor([list(ids)])
    with _prepared(model, as_batch(sequence), layers, with_head=True) as prepared:
        head = heads.find_output_head(prepared, sequence)
    if isinstance(head, str):
        name = model.name if isinstance(model, LoadedModel) else type(model).__name__
        raise ValueError(f"expected an output head, got none in {name}: {head}")
    return head


def causal_stacks(model: Model, tokens: Tokens) -> dict[str | None, bool | None]:
    """Return for each stack of blocks whether no position sees a later one; None where that cannot
    be tested.
    """
    probe = tokens if isinstance(tokens, Probe) else sequences_probe(tokens)
    with _prepared(model, probe) as prepared:
        return causality(prepared, probe)


def count_blocks(loaded: LoadedModel) -> dict[str | None, int]:
    """Return the number of blocks of each stack of a model.

    Raises:
        CheckpointError: the blocks are not found.
    """
    with model_errors(f"{loaded.name} cannot be measured"):
        # found by structure alone: the model does not run
        stacks = [block.stack for block in find_blocks(loaded.model, loaded.layers)]
    return {stack: stacks.count(stack) for stack in dict.fromkeys(stacks)}


def sequences_probe(sequences: Sequence[Sequence[int]]) -> Probe:
    """Return a probe of whole sequences of which every token is sampled, in one batch.

    Copies of the last sequence are appended if these have too few tokens for a probe.

    Raises:
        ValueError: no sequence, or an empty one.
    """
    lengths = [len(sequence) for sequence in sequences]
    if not lengths or min(lengths) < 1:
        raise ValueError(
            f"expected sentences of at least one token, got lengths {lengths[:5]}; leave empty "
            "texts out"
        )
    whole = [list(sequence) for sequence in sequences]
    # a probe has at least so many vectors, so the last sequence is repeated
    whole += [whole[-1] for _ in range(MIN_BATCH_VECTORS - sum(lengths))]
    n_tokens = sum(map(len, whole))
    # a single sequence has no vector outside of its window, so no window may be excluded
    design = Design(
        "sequences", n_windows=len(whole), disjoint_windows=False, exclude_own_window=False
    )
    return Probe.from_tokens(
        whole,
        n_windows=len(whole),
        max_vectors=n_tokens,
        batch_vectors=n_tokens,
        design=design,
    )


@contextmanager
def _prepared(
    model: Model,
    probe: Probe | ProbeBatch,
    layers: LayerPatterns = None,
    *,
    with_head: bool = False,
) -> Iterator[RunnableModel]:
    """Yield the model, prepared to run; errors of a loaded one become CheckpointErrors that name
    it.
    """
    if not isinstance(model, LoadedModel):
        yield prepare(model, probe, layers)
        return
    with model_errors(f"{model.name} cannot be measured"):
        module = model.with_head if with_head and model.with_head is not None else model.model
        yield prepare(module, probe, model.layers if layers is None else layers)
