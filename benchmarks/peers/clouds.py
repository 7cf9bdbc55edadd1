"""Point clouds of the comparison: synthetic ones, and states captured from models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from repdyn import Probe
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare
from repdyn.probe.corpus import load_corpus
from repdyn.utils.printing import without_reports

_SEQUENCE_LENGTH = 256
_OUTLIERS = 4


def gaussian(rows: int, columns: int) -> Tensor:
    """Return an isotropic Gaussian cloud: the worst case for the anisotropy."""
    return torch.randn(rows, columns, generator=_seeded())


def decaying(rows: int, columns: int) -> Tensor:
    """Return a cloud with singular values proportional to i ** -0.7 along rotated axes, like those
    of states.
    """
    generator = _seeded()
    scales = torch.arange(1.0, columns + 1) ** -0.7
    rotation = torch.linalg.qr(torch.randn(columns, columns, generator=generator)).Q
    return torch.randn(rows, columns, generator=generator) * scales @ rotation


def outliers(rows: int, columns: int) -> Tensor:
    """Return a cloud as :func:`decaying`, with four coordinates of 100 times the standard
    deviation.
    """
    x = decaying(rows, columns)
    wide = torch.linspace(0, columns - 1, _OUTLIERS).long()
    x[:, wide] = 100 * x.std() * torch.randn(rows, _OUTLIERS, generator=_seeded())
    return x


SYNTHETIC: dict[str, Callable[[int, int], Tensor]] = {
    "gaussian": gaussian,
    "decaying": decaying,
    "outliers": outliers,
}


def states(model: str, text: str, rows: int, device: str) -> tuple[str, Tensor]:
    """Return distinct states of a model's middle layer, in random order.

    Args:
        model: folder or hub repository that ``AutoModel`` and ``AutoTokenizer`` load.
        text: "builtin", "enwik8" or the path of a text.
        rows: tokens sampled, first positions and special tokens left out; equal states among them
            are taken once.
        device: where the model runs.

    Returns:
        Their name, and float32 of shape (at most ``rows``, dim) on ``device``.

    Raises:
        OSError: there is no such model, or it has no tokenizer.
        ValueError: the text is too short for so many rows.
    """
    with without_reports():
        loaded = AutoModel.from_pretrained(model).to(device)
        tokenizer = AutoTokenizer.from_pretrained(model)
    context = (
        getattr(loaded.config.get_text_config(), "max_position_embeddings", None)
        or _SEQUENCE_LENGTH
    )
    corpus = load_corpus(text)
    probe = Probe.from_texts(
        [corpus.data.decode(errors="replace")],
        tokenizer,
        sequence_length=min(_SEQUENCE_LENGTH, context, tokenizer.model_max_length),
        max_vectors=rows,
        batch_vectors=rows,
        name=corpus.name,
    )
    layers = capture(prepare(loaded, probe), probe, ["no_sink"]).layers
    middle = layers[len(layers) // 2]
    x = middle.states.float()
    first = np.unique(x.cpu().numpy(), axis=0, return_index=True)[1]
    distinct = torch.from_numpy(first)[torch.randperm(len(first), generator=_seeded())]
    return f"layer {middle.index} of {model} on {probe.name}", x[distinct.to(x.device)].contiguous()


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
