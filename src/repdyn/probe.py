"""The probe: the fixed tokens every checkpoint is shown, and which of their vectors are measured.

Two checkpoints compare only when they saw the same tokens and the same vectors were taken. Both are fixed here,
once, and named by a content hash that every stored row carries.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from repdyn.probe_content import read_probe, refuse_holes, refuse_other_than_sequences, writable, write_probe
from repdyn.text_windows import windows_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SUBSETS = ("all", "no_sink")

_SETTINGS = ("special_ids", "batch_vectors", "n_batches", "seed", "pad_id", "name")
BATCH_VECTORS = 4096
MAX_VECTORS = 4 * BATCH_VECTORS

# Text tokens taken for each vector that will be measured: a sample is a little thinner than the text it comes from.
_TOKENS_PER_VECTOR = 1.25


@dataclass(frozen=True)
class ProbeBatch:
    """A few sequences of the probe as a model takes them: both tensors (n_sequences, length), right-padded."""

    input_ids: Tensor
    attention_mask: Tensor
    positions: np.ndarray
    """Where in the padded batch, flattened, each valid token stands; in the probe's token order."""
    first_token: int
    """Index in the probe of the first valid token of this batch."""


@dataclass(frozen=True, eq=False)
class Probe:
    """A fixed set of token sequences with a seeded plan of which vectors to measure.

    Tokens are numbered through the whole probe, sequence after sequence, padding left out. The plan is one random
    permutation of these numbers: batch b of a subset is its b-th run of ``batch_vectors`` members. Neighbouring
    tokens, which are correlated, are thereby spread over all batches, and neither the padding side nor the batch
    size of the forward pass has any say in which vectors are taken.

    Build one with :meth:`from_texts`, :meth:`from_tokens` or :meth:`enwik8`.
    """

    tokens: Tensor
    """(n_tokens,) int64: all sequences one after the other, without padding."""
    lengths: Tensor
    """(n_sequences,) int64: tokens in each sequence."""
    special_ids: tuple[int, ...] = ()
    """Token ids left out of ``no_sink`` beside the first position of every sequence."""
    batch_vectors: int = BATCH_VECTORS
    """Vectors in one metric batch. Estimates grow with it, so values at different numbers do not compare."""
    n_batches: int = MAX_VECTORS // BATCH_VECTORS
    """Metric batches; the value of a layer is the mean over them."""
    seed: int = 0
    pad_id: int = 0
    name: str = "tokens"

    def __post_init__(self) -> None:
        refuse_other_than_sequences(self.tokens, self.lengths)
        if self.batch_vectors < 3 or self.n_batches < 1:
            raise ValueError(
                f"expected batch_vectors >= 3 and at least one batch, got batch_vectors={self.batch_vectors} "
                f"and {self.n_batches} batches; raise max_vectors or lower batch_vectors"
            )
        needed = self.batch_vectors * self.n_batches
        for subset in SUBSETS:
            available = len(self._members(subset))
            if available < needed:
                whole = available // self.batch_vectors * self.batch_vectors
                fewer = f"max_vectors={whole}" if whole else f"max_vectors={available}, batch_vectors={available}"
                raise ValueError(
                    f"the probe is too small: {self.n_batches} batches of {self.batch_vectors} vectors need {needed} "
                    f"tokens, but the subset {subset!r} has {available} of its {len(self.tokens)}; give "
                    f"{needed - available} tokens of this subset more, or ask for fewer vectors with {fewer}"
                )

    @classmethod
    def from_tokens(
        cls,
        input_ids: Any,
        attention_mask: Any = None,
        *,
        special_ids: Iterable[int] = (),
        max_vectors: int = MAX_VECTORS,
        batch_vectors: int | None = None,
        seed: int = 0,
        pad_id: int = 0,
        name: str = "tokens",
    ) -> Probe:
        """A probe from token ids.

        Args:
            input_ids: (n_sequences, length) integers: a tensor, an array or nested lists.
            attention_mask: (n_sequences, length), nonzero at tokens; None without padding. Padding may stand on either
                side, not between tokens.
            special_ids: ids of special tokens, left out of the subset ``no_sink``.
            max_vectors: vectors measured per layer, in all batches together.
            batch_vectors: vectors per batch; by default 4096, or ``max_vectors`` when that is fewer.
            seed: of the sampling plan.
            pad_id: fills the padding again when a batch is formed.
            name: what the text is, for figures and logs.

        Raises:
            ValueError: wrong shape, padding between tokens, or too few tokens (with the number that is needed).
        """
        ids = torch.as_tensor(input_ids).cpu()
        if ids.ndim != 2 or ids.is_floating_point() or ids.numel() == 0:
            raise ValueError(
                f"expected input_ids of shape (n_sequences, length) and integer type, got {tuple(ids.shape)} of "
                f"{ids.dtype}; a single sequence needs a leading dimension of 1"
            )
        mask = torch.ones_like(ids) if attention_mask is None else torch.as_tensor(attention_mask).cpu()
        if mask.shape != ids.shape:
            raise ValueError(
                f"expected an attention_mask of the shape of input_ids, {tuple(ids.shape)}, got {tuple(mask.shape)}"
            )
        mask = mask != 0
        refuse_holes(mask)
        lengths = mask.sum(dim=1)
        kept = lengths > 0
        return cls(
            tokens=ids[mask].long(),
            lengths=lengths[kept],
            special_ids=tuple(sorted({int(token) for token in special_ids})),
            seed=seed,
            pad_id=pad_id,
            name=name,
            **_plan_size(max_vectors, batch_vectors),
        )

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        tokenizer: PreTrainedTokenizerBase,
        *,
        sequence_length: int = 256,
        max_vectors: int = MAX_VECTORS,
        batch_vectors: int | None = None,
        seed: int = 0,
        name: str = "texts",
    ) -> Probe:
        """A probe from texts and any Hugging Face tokenizer.

        Each text is cut into windows of ``sequence_length`` tokens, the tokenizer's own prefix and suffix (``[CLS]``,
        ``<s>``, ...) included in each. Where there are more windows than the plan needs, those kept are spread evenly
        over all of them.

        Args:
            texts: any number of texts of any length.
            tokenizer: of the model that will be measured.
            sequence_length: tokens in a window; at most the model's context.
            max_vectors: vectors measured per layer, in all batches together.
            batch_vectors: vectors per batch; by default 4096, or ``max_vectors`` when that is fewer.
            seed: of the sampling plan.
            name: what the text is, for figures and logs.

        Raises:
            ValueError: too few tokens (with the number that is needed), or a ``sequence_length`` that the special
                tokens fill already, or a text that UTF-8 cannot write.
        """
        looked_at = texts if isinstance(texts, str) else writable(texts)
        windows = windows_of(looked_at, tokenizer, sequence_length, needed=int(max_vectors * _TOKENS_PER_VECTOR))
        return cls(
            tokens=torch.tensor([token for window in windows for token in window], dtype=torch.long),
            lengths=torch.tensor([len(window) for window in windows], dtype=torch.long),
            special_ids=tuple(sorted(set(tokenizer.all_special_ids))),
            seed=seed,
            pad_id=cast(int, tokenizer.pad_token_id or 0),
            name=name,
            **_plan_size(max_vectors, batch_vectors),
        )

    @classmethod
    def enwik8(cls, tokenizer: PreTrainedTokenizerBase, *, path: str | None = None, **settings: Any) -> Probe:
        """A probe from the last 5 % of cleaned enwik8, the part held out from training by custom.

        Args:
            tokenizer: of the model that will be measured.
            path: a copy of enwik8 (plain, .gz, .xz or .zip); None downloads it once, with its checksum verified.
            **settings: sequence_length, max_vectors, batch_vectors, seed: as for :meth:`from_texts`.
        """
        from repdyn.data.source import load_corpus  # here, because it reads text that no other probe needs

        corpus = load_corpus(path or "enwik8")
        held_out = corpus.data[len(corpus.data) * 95 // 100 :].decode("utf-8", errors="ignore")
        return cls.from_texts([held_out], tokenizer, name=corpus.name, **settings)

    @cached_property
    def hash(self) -> str:
        """16 hexadecimal digits naming tokens and plan."""
        digest = hashlib.sha256()
        plan = [list(self.special_ids), self.batch_vectors, self.n_batches, self.seed]
        digest.update(json.dumps(plan).encode())
        for tensor in (self.lengths, self.tokens):
            digest.update(tensor.numpy().astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def sample(self, subset: str) -> np.ndarray:
        """Token numbers of every metric batch of a subset, (n_batches, batch_vectors)."""
        members = self._members(subset)[: self.n_batches * self.batch_vectors]
        return members.reshape(self.n_batches, self.batch_vectors)

    def batches(self, n_sequences: int) -> Iterator[ProbeBatch]:
        """The whole probe in its order, at most ``n_sequences`` at a time, padded on the right to the longest of each.

        No batch is square: it would not tell states of shape (batch, length) from (length, batch).
        """
        starts = np.concatenate([[0], np.cumsum(self.lengths.numpy())])
        last = 0
        while last < len(self.lengths):
            first, last = last, min(last + n_sequences, len(self.lengths))
            while last - first == int(self.lengths[first:last].max()) > 1:
                last -= 1
            lengths = self.lengths[first:last]
            mask = torch.arange(int(lengths.max()))[None, :] < lengths[:, None]
            input_ids = torch.full(mask.shape, self.pad_id, dtype=torch.long)
            input_ids[mask] = self.tokens[starts[first] : starts[last]]
            positions = np.flatnonzero(mask.numpy().ravel())
            yield ProbeBatch(input_ids, mask.long(), positions, first_token=int(starts[first]))

    def save(self, path: str | Path) -> None:
        """Write the probe to a safetensors file, from which :meth:`load` gives an equal one (equal hash)."""
        settings = {name: getattr(self, name) for name in _SETTINGS}
        write_probe(path, self.tokens, self.lengths, settings, self.hash)

    @classmethod
    def load(cls, path: str | Path) -> Probe:
        """Read a probe that :meth:`save` wrote.

        Raises:
            ValueError: the file is not a probe, or its content does not have the hash it claims.
            OSError: it cannot be read.
        """
        content = read_probe(path)
        try:
            probe = cls(content.tokens, content.lengths, **content.settings)
        except ValueError as error:
            raise ValueError(f"expected a probe written by Probe.save, got {path}: {error}") from error
        if probe.hash != content.hash:
            raise ValueError(f"{path} claims the hash {content.hash} but its content has {probe.hash}")
        return probe

    @cached_property
    def _permutation(self) -> np.ndarray:
        # RandomState's stream is frozen by numpy's policy; Generator's and torch's may change between releases.
        return np.random.RandomState(self.seed).permutation(len(self.tokens))

    @cached_property
    def _is_sink(self) -> np.ndarray:
        is_sink = np.isin(self.tokens.numpy(), self.special_ids)
        is_sink[np.cumsum(self.lengths.numpy()) - self.lengths.numpy()] = True
        return is_sink

    def _members(self, subset: str) -> np.ndarray:
        if subset == "all":
            return self._permutation
        if subset == "no_sink":
            return self._permutation[~self._is_sink[self._permutation]]
        raise ValueError(f"expected a subset among {', '.join(SUBSETS)}, got {subset!r}")


def _plan_size(max_vectors: int, batch_vectors: int | None) -> dict[str, int]:
    batch = min(BATCH_VECTORS, max_vectors) if batch_vectors is None else batch_vectors
    return {"batch_vectors": batch, "n_batches": max_vectors // batch if batch > 0 else 0}
