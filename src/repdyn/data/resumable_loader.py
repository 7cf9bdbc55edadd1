"""A DataLoader that keeps its place, so that a resumed training reads the batches of an undisturbed one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from torch import Generator
from torch.utils.data import DataLoader


class ResumableLoader(DataLoader[Any]):
    """A DataLoader with a ``state_dict``, which Lightning stores in checkpoints and loads before it resumes.

    The state holds the random state at the start of the epoch and the number of batches read since. A resumed epoch
    draws the same order (and the same masks) again and discards the batches that were read: well under a millisecond
    each, so that no sampler or collate function needs to know about it. An epoch that ``limit_train_batches`` cuts
    short is taken as unfinished by a training that resumes exactly at its end.

    Args:
        generator: required, as for any DataLoader that must not draw from the global random state.
        collate_fn: one that draws random numbers in this process has an attribute ``random_state``.
    """

    _epoch_start: dict[str, Any] | None = None
    _n_read = 0
    _n_to_discard = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        n_discarded, self._n_to_discard = self._n_to_discard, 0
        self._epoch_start, self._n_read = self._random_state(), n_discarded
        for number, batch in enumerate(super().__iter__(), start=1):
            if number > n_discarded:
                self._n_read = number
                yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the data, as built-in types and tensors."""
        if self._n_to_discard or self._epoch_start is None:  # nothing was read yet, or since the place was loaded
            return {**self._random_state(), "n_read": self._n_to_discard}
        if self._n_read == len(self):  # the next batch begins an epoch, with the random state that this one has left
            return {**self._random_state(), "n_read": 0}
        return {**self._epoch_start, "n_read": self._n_read}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a place in the data, with the next iterator."""
        cast(Generator, self.generator).set_state(state_dict["order"])
        if hasattr(self.collate_fn, "random_state"):
            setattr(self.collate_fn, "random_state", state_dict["collate"])  # noqa: B010 - of functions that have it
        self._n_to_discard = state_dict["n_read"]

    def _random_state(self) -> dict[str, Any]:
        order = cast(Generator, self.generator).get_state()
        return {"order": order, "collate": getattr(self.collate_fn, "random_state", None)}
