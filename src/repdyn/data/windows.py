"""Token ids as windows, windows as batches for next-token and masked-token training, and their
loader.

- :class:`Windows`: the windows of an array of ids.
- :func:`collate_causal`, :class:`CollateMasked`: batches of them, with labels.
- :class:`ResumableLoader`: goes on at the batch at which a checkpoint was saved.
- :class:`WindowsDataModule`: all three for Lightning.
"""

from collections.abc import Iterator
from typing import Any, Literal, cast

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase


class ResumableLoader(DataLoader[Any]):
    """A DataLoader with a ``state_dict``, which Lightning stores in checkpoints and loads before it
    resumes.

    The state holds the random state at the start of the epoch and the number of batches read since.
    A resumed epoch draws the same order (and the same masks) again and discards the batches that
    were read: well under a millisecond each, so that no sampler or collate function needs to know
    about it. An epoch that ``limit_train_batches`` cuts short is taken as unfinished by a training
    that resumes exactly at its end.

    Args:
        generator: required, as for any DataLoader that must not draw from the global random state.
        collate_fn: one that draws random numbers in this process has an attribute ``random_state``.
    """

    _epoch_start: dict[str, Any] | None = None
    """The random state at the start of the epoch; None before the first."""
    _n_read = 0
    """The number of batches read in the epoch."""
    _n_to_discard = 0
    """The number of batches that the next iterator discards, which were read before."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        n_discarded = self._n_to_discard
        self._n_to_discard = 0
        self._epoch_start = self._random_state()
        self._n_read = n_discarded
        for number, batch in enumerate(super().__iter__(), start=1):
            if number > n_discarded:
                self._n_read = number
                yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the data, as built-in types and tensors."""
        if self._n_to_discard or self._epoch_start is None:
            # nothing was read yet: not at all, or not since a place was loaded
            return {**self._random_state(), "n_read": self._n_to_discard}
        if self._n_read == len(self):
            # the next batch begins an epoch, with the random state that this one has left
            return {**self._random_state(), "n_read": 0}
        return {**self._epoch_start, "n_read": self._n_read}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a place in the data, with the next iterator."""
        cast(Generator, self.generator).set_state(state_dict["order"])
        collate: Any = self.collate_fn
        if hasattr(collate, "random_state"):
            collate.random_state = state_dict["collate"]
        self._n_to_discard = state_dict["n_read"]

    def _random_state(self) -> dict[str, Any]:
        order = cast(Generator, self.generator).get_state()
        return {"order": order, "collate": getattr(self.collate_fn, "random_state", None)}


Batch = dict[str, Tensor]


class Windows(Dataset[tuple[int, Tensor]]):
    """Consecutive windows of a token array that do not overlap; what is left at the end is not
    used.

    Args:
        tokens: (n_tokens,) integer ids.
        length: tokens in a window, special tokens counted.
        before: ids put at the start of each window.
        after: ids put at its end.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        length: int,
        before: tuple[int, ...] = (),
        after: tuple[int, ...] = (),
    ):
        inner = length - len(before) - len(after)
        # a view of the array: windows are made when they are asked for
        self._content = tokens[: len(tokens) // inner * inner].reshape(-1, inner)
        self._before = np.asarray(before, np.int64)
        self._after = np.asarray(after, np.int64)

    def __len__(self) -> int:
        return len(self._content)

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        """Return the index and (length,) int64 ids."""
        return index, torch.from_numpy(
            np.concatenate((self._before, self._content[index], self._after), dtype=np.int64)
        )


def collate_causal(windows: list[tuple[int, Tensor]]) -> Batch:
    """Return a batch for next-token training: labels are the inputs, which transformers' models
    shift.
    """
    input_ids = torch.stack([ids for _, ids in windows])
    return {
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "labels": input_ids.clone(),
    }


class CollateMasked:
    """Makes batches for masked-token training: of the chosen tokens 80% are masked, 10% replaced,
    10% left alone.

    Special tokens are never chosen; the labels of all others are -100.

    Args:
        tokenizer: with a mask token.
        probability: share of tokens chosen, in (0, 1].
        seed: seed of the choice.
        fixed: choose by the window's index alone, the same in every epoch and every batch, so that
            validation losses can be compared; otherwise the choice is drawn anew each time.

    Source: Devlin et al. 2019, section 3.1, through
    ``transformers.DataCollatorForLanguageModeling``.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, probability: float, seed: int, fixed: bool
    ):
        self._collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=probability)
        self._special_ids = torch.tensor(tokenizer.all_special_ids)
        self._seed = seed
        self._fixed = fixed
        self._generator: torch.Generator | None = None

    def __call__(self, windows: list[tuple[int, Tensor]]) -> Batch:
        if self._fixed:
            masked = [
                self._mask(ids, torch.Generator().manual_seed(self._seed + index))
                for index, ids in windows
            ]
            input_ids, labels = (torch.stack(column) for column in zip(*masked, strict=True))
        else:
            input_ids, labels = self._mask(
                torch.stack([ids for _, ids in windows]), self._running_generator()
            )
        return {
            "input_ids": input_ids,
            "attention_mask": torch.ones_like(input_ids),
            "labels": labels,
        }

    def _mask(self, ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        self._collator.generator = generator
        return self._collator.torch_mask_tokens(
            ids.clone(), special_tokens_mask=torch.isin(ids, self._special_ids)
        )

    @property
    def random_state(self) -> Tensor | None:
        """Return the state of the generator in this process; None if nothing was drawn from it yet,
        as where workers draw.
        """
        return self._generator.get_state() if self._generator else None

    @random_state.setter
    def random_state(self, state: Tensor | None) -> None:
        self._generator = torch.Generator().set_state(state) if state is not None else None

    def _running_generator(self) -> torch.Generator:
        if self._generator is None:
            worker = get_worker_info()
            # a worker process is started anew for every epoch, with a seed of its own that the
            # loader draws from its generator: masks are then new in each epoch, and reproducible
            self._generator = torch.Generator().manual_seed(worker.seed if worker else self._seed)
        return self._generator


class WindowsDataModule(LightningDataModule):
    """Windows of one tokenizer's ids in batches, for next-token or masked-token training: the base
    of both modules.

    A batch is a dict of int64 tensors (batch, sequence_length): input_ids, attention_mask, labels.
    Training windows are shuffled anew each epoch; validation windows, and their masks, are always
    the same. A subclass sets the ``tokenizer``, and calls :meth:`_require_trainable`.

    Args:
        objective: "causal" to predict the next token (decoders), "masked" to predict masked ones
            (encoders).
        sequence_length: tokens in a window, special tokens counted: [CLS] and [SEP] where the
            objective is masked.
        batch_size: windows in a batch.
        num_workers: processes that prepare batches.
        seed: of all that is drawn: the shuffling, the masks, and the text where it is drawn.
        max_vectors: vectors the tracker measures per layer, in all batches together.
        batch_vectors: vectors per batch of a metric.
        mask_probability: share of tokens to predict where the objective is masked.
    """

    tokenizer: PreTrainedTokenizerBase

    def __init__(
        self,
        objective: Literal["causal", "masked"] = "causal",
        sequence_length: int = 256,
        batch_size: int = 32,
        num_workers: int = 0,
        seed: int = 0,
        max_vectors: int = 4096,
        batch_vectors: int = 4096,
        mask_probability: float = 0.15,
    ) -> None:
        super().__init__()
        self.objective = objective
        self.sequence_length = sequence_length
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.max_vectors = max_vectors
        self.batch_vectors = min(batch_vectors, max_vectors)
        self.mask_probability = mask_probability

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids, special tokens included, known before a text is read."""
        return len(self.tokenizer)

    @property
    def pad_token_id(self) -> int | None:
        """Return the id of the padding token; None for a tokenizer without one (no window is ever
        padded).
        """
        return cast("int | None", self.tokenizer.pad_token_id)

    def _loader(self, windows: Windows, shuffle: bool) -> ResumableLoader:
        """Return a loader of windows in batches; iterating it leaves the global random
        state alone.
        """
        collate = collate_causal
        if self.objective == "masked":
            collate = CollateMasked(
                self.tokenizer, self.mask_probability, self.seed, fixed=not shuffle
            )
        return ResumableLoader(
            windows,
            batch_size=self.batch_size,
            shuffle=shuffle,
            collate_fn=collate,
            num_workers=self.num_workers,
            pin_memory=torch.cuda.is_available(),
            # a generator even where nothing is shuffled: without one, iterating draws from the
            # global random state, which would change the training
            generator=torch.Generator().manual_seed(self.seed),
        )

    def _require_trainable(self, n_special: int) -> None:
        """Raise ValueError for an unknown objective, windows too short for ``n_special`` tokens, or
        a wrong share.
        """
        if self.objective not in ("causal", "masked"):
            raise ValueError(f'expected objective "causal" or "masked", got "{self.objective}"')
        if self.sequence_length < 2 + n_special:
            raise ValueError(
                f"expected sequence_length of at least {2 + n_special} (two tokens of text and "
                f"{n_special} special ones), got {self.sequence_length}"
            )
        if not 0 < self.mask_probability <= 1:
            raise ValueError(f"expected mask_probability in (0, 1], got {self.mask_probability}")
