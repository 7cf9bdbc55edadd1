"""The states of chosen layers of a model, as many as a text gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from repdyn import Probe
from repdyn.data.text import Corpus
from repdyn.kernels import Cloud
from repdyn.layers.blocks import find_blocks
from repdyn.layers.capture import capture
from repdyn.quiet import without_reports
from repdyn.text_windows import windows_of
from sizes.study import Pool

_SEQUENCE_LENGTH = 256
# an eighth of the tokens may be special or stand first in their sequence
_SPARE = 1.125

Layer = int | str
"""Number of a layer, or "first" (that is 1: layer 0 holds embeddings), "middle" or "last"."""


def tokenizer_of(model: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or hub repository.

    Raises:
        ValueError: there is no model, or no tokenizer beside it.
    """
    try:
        with without_reports():
            AutoConfig.from_pretrained(model)
            tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0].removesuffix(".")
        raise ValueError(
            f"expected the folder or hub name of a model with its tokenizer, got {model} ({reason}); check the name"
        ) from error
    # transformers makes an empty one where the files are missing
    if not tokenizer("a", add_special_tokens=False)["input_ids"]:
        raise ValueError(
            f"expected a tokenizer beside the model in {model}, found none; write it there with its save_pretrained"
        )
    return tokenizer


def pools(
    model: str,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    layers: Sequence[Layer],
    rows: int,
    progress: Callable[[float], None],
) -> list[Pool]:
    """States of some layers, in float32 and in random order.

    Args:
        model: folder or hub repository that ``AutoModel`` loads.
        tokenizer: its own.
        corpus: the text; windows spread evenly over it are taken.
        layers: which ones, in ascending order afterwards.
        rows: vectors wanted; where the text has fewer, all of its own. First positions and special tokens are left out.
        progress: called with the share of the text that has run.

    Raises:
        OSError: there is no such model.
        ValueError: the text has fewer than three tokens, or the model has no such layer.
        RuntimeError: the model runs a block more than once.
    """
    with without_reports():
        loaded = AutoModel.from_pretrained(model, dtype=torch.float32)
    names = [block.name for block in find_blocks(loaded)]
    numbers = layer_numbers(layers, len(names), model)
    context = getattr(loaded.config.get_text_config(), "max_position_embeddings", None) or _SEQUENCE_LENGTH
    length = min(_SEQUENCE_LENGTH, context, tokenizer.model_max_length)
    # layer 0 is the input of the first block, which is seen on its way to the block's output
    wanted = sorted({max(number, 1) for number in numbers})
    probe = probe_of(corpus, tokenizer, length, rows)
    captured = capture(loaded, probe, ["no_sink"], [names[number - 1] for number in wanted], progress=progress).layers
    if len(captured) != 1 + len(wanted):
        raise RuntimeError(
            f"expected {model} to run each block once, got {len(captured) - 1} runs of {len(wanted)}; "
            "take a model whose layers do not share their weights"
        )
    kept = dict(zip([0, *wanted], captured, strict=True))
    found = []
    for number in numbers:
        states = kept[number].states.float()
        name = f"layer {number} of {len(names)}"
        found.append(Pool(model, name, states, Cloud(states).n_unique))
    return found


def layer_numbers(layers: Sequence[Layer], n_blocks: int, model: str) -> list[int]:
    """Ascending, each once.

    Raises:
        ValueError: a number beyond the model's blocks.
    """
    named = {"first": 1, "middle": (n_blocks + 1) // 2, "last": n_blocks}
    numbers = sorted({layer if isinstance(layer, int) else named[layer] for layer in layers})
    if numbers[-1] > n_blocks:
        raise ValueError(
            f"expected layers from 0 to {n_blocks} for {model}, got {numbers[-1]}; "
            "first, middle and last exist in every model"
        )
    return numbers


def probe_of(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, length: int, rows: int) -> Probe:
    """One batch of ``rows`` vectors without first positions and special tokens, or of as many as the text has."""
    text = corpus.data.decode(errors="replace")
    windows = windows_of([text], tokenizer, length, needed=int(rows * _SPARE))
    special = sorted(set(tokenizer.all_special_ids))
    n_others = sum(int(np.isin(window[1:], special, invert=True).sum()) for window in windows)
    return Probe(
        tokens=torch.tensor([token for window in windows for token in window], dtype=torch.long),
        lengths=torch.tensor([len(window) for window in windows], dtype=torch.long),
        special_ids=tuple(special),
        batch_vectors=min(rows, n_others),
        n_batches=1,
        name=corpus.name,
    )
