"""The models of the study, and disjoint windows of one text for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from repdyn.utils.quiet import without_reports

_SEED = 0


@dataclass(frozen=True)
class LoadedModel:
    """One model in one state of training."""

    name: str
    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    context: int

    @classmethod
    def load(cls, spec: str) -> LoadedModel:
        """Load ``NAME=FOLDER``, or ``NAME=FOLDER@random`` for the same architecture with random weights.

        Raises:
            ValueError: the specification has another form, or the folder holds no model with its tokenizer.
        """
        name, separator, path = spec.partition("=")
        folder, _, weights = path.partition("@")
        if not separator or weights not in ("", "random") or not Path(folder).is_dir():
            raise ValueError(f"expected NAME=FOLDER or NAME=FOLDER@random, got {spec!r}; name a folder that exists")
        with without_reports():
            config = AutoConfig.from_pretrained(folder)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            if weights:
                torch.manual_seed(_SEED)
                model = AutoModel.from_config(config)
            else:
                model = AutoModel.from_pretrained(folder, dtype=torch.float32)
        context = getattr(config, "max_position_embeddings", None) or 1 << 30
        return cls(name, model.eval(), tokenizer, min(context, tokenizer.model_max_length))


class FreshWindows:
    """Windows of a text, each piece of text used once.

    Args:
        text: what to cut.
        tokenizer: of the model; its special tokens are put around each window.
    """

    def __init__(self, text: str, tokenizer: PreTrainedTokenizerBase) -> None:
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        bare = tokenizer("a", add_special_tokens=False)["input_ids"]
        full = tokenizer("a")["input_ids"]
        at = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)
        self._prefix, self._suffix = full[:at], full[at + len(bare) :]
        self._ids = np.array(ids)
        self.special_ids = sorted(set(tokenizer.all_special_ids))

    def sets(self, length: int, n_windows: int, seed: int) -> Iterator[np.ndarray]:
        """Yield disjoint random sets of windows, (n_windows, length) each, as long as the text lasts."""
        body = length - len(self._prefix) - len(self._suffix)
        order = np.random.RandomState(seed).permutation(len(self._ids) // body)
        for start in range(0, len(order) - n_windows + 1, n_windows):
            rows = [self._ids[i * body : (i + 1) * body] for i in order[start : start + n_windows]]
            yield np.stack([np.concatenate([self._prefix, row, self._suffix]) for row in rows]).astype(np.int64)
