"""Read what a probe needs of a data set: rows of token ids, texts, or batches of other inputs.

Rows are read in order and evenly spread, as few as the probe takes, without the loader that may be
around them: neither its workers nor its random order have a part in it. A collate function is asked
only where rows hold no token ids of their own, since one that masks or shuffles would return others
than the data has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from repdyn.probe.bounds import VECTORS_PER_WINDOW, WINDOW_TOKENS, evenly

MAX_READ = 16_384
"""Largest number of rows that are read to find enough that are not empty or very short."""
MAX_INPUT_BYTES = 2**27
"""Size of the inputs that are kept at most, which the probe's file holds."""
BATCH_ROWS = 16
"""Number of rows that a collate function is given at once."""
LABELS = frozenset({"label", "labels", "label_ids", "target", "targets", "y"})
DECODER_TOKENS = "decoder_input_ids"
_BESIDE = LABELS | {
    "attention_mask",
    "idx",
    "index",
    "length",
    "position_ids",
    "special_tokens_mask",
    "token_type_ids",
}
"""Names of integers that are no token ids."""
TOKENS = ("input_ids", "ids", "token_ids", "tokens", "inputs", "input", "x", "src")
"""Usual names of token ids, the likeliest first, where a row has integers of several names."""
_EXPECTED = "expected rows of token ids, of texts or of tensors"


class Content(NamedTuple):
    """Holds the rows of a data set, as tokens, as texts or as inputs of another kind."""

    n_rows: int | None
    """Number of rows of the data set; None where it does not know it."""
    tokens: list[np.ndarray] = []  # noqa: RUF012  # read and never changed
    """(length,) token ids of each row, without padding."""
    texts: list[str] = []  # noqa: RUF012
    inputs: list[Any] = []  # noqa: RUF012
    """Batches as a model's forward takes them."""


@dataclass(frozen=True)
class Source:
    """A data set, and how its rows become batches."""

    data: Any
    collate_fn: Callable[[list[Any]], Any] | None = None
    is_batched: bool = False
    """Whether each element is a batch already."""

    @classmethod
    def of(cls, data: Any) -> Source:
        """Return the data set inside a DataLoader, or the data as they are.

        Raises:
            TypeError: something that holds no rows.
        """
        if hasattr(data, "dataset") and hasattr(data, "collate_fn"):
            is_batched = data.batch_size is None and data.batch_sampler is None
            return cls(data.dataset, None if is_batched else data.collate_fn, is_batched)
        if isinstance(data, Mapping):
            values = list(data.values())
            if values and all(hasattr(value, "column_names") for value in values):
                names = ", ".join(map(repr, data))
                raise TypeError(
                    f"expected one data set, got a dictionary of {names}; pass one of them, as in "
                    f"data[{next(iter(data))!r}]"
                )
            return cls([data], is_batched=True)
        has_rows = hasattr(data, "__getitem__") or hasattr(data, "__iter__")
        if isinstance(data, str | bytes) or not has_rows:
            raise TypeError(
                f"expected a data set, a DataLoader or a list of batches, got "
                f"{type(data).__name__}; put texts into a list"
            )
        return cls(data)

    @property
    def n_elements(self) -> int | None:
        """Return the number of elements; None of a stream, which is read from its beginning."""
        if isinstance(self.data, torch.utils.data.IterableDataset):
            return None
        if not (hasattr(self.data, "__len__") and hasattr(self.data, "__getitem__")):
            return None
        return len(self.data)

    def read(self, count: int) -> list[Any]:
        """Return at most so many elements: evenly spaced ones, or the first ones of a stream."""
        if (n := self.n_elements) is None:
            return list(islice(iter(self.data), count))
        return [self.data[int(index)] for index in evenly(n, count)] if n else []


def read_dataset(
    source: Source,
    n_windows: int,
    n_tokens: int,
    *,
    column: str | None = None,
    tokenizes: bool = False,
    accepted: Collection[str] | None = None,
) -> Content:
    """Read what a probe takes of a data set.

    Args:
        source: the data set.
        n_windows: number of rows to read; more, up to 16,384, where they are empty or short.
        n_tokens: number of tokens the rows need together.
        column: of rows by name, the one that holds texts or token ids; None finds it.
        tokenizes: whether texts can be tokenized, so that no collate function needs to.
        accepted: names of a forward's arguments, which inputs are restricted to; None keeps all
            but labels.

    Raises:
        ValueError: no rows, or rows that are neither token ids, texts nor tensors.
    """
    elements = source.read(n_windows)
    if not elements:
        raise ValueError("expected a data set with rows, got an empty one; pass one that has some")
    if _is_number(elements[0]):
        raise ValueError(
            "expected rows of token ids, got numbers; put a text in one row into a list, "
            "Probe.from_dataset([token_ids]), which cuts it into windows"
        )
    if (rows := _token_rows(elements, column)) is not None:
        rows = _enough(source, rows, n_windows, n_tokens, column)
        return Content(source.n_elements, tokens=rows)
    texts = [
        None if column is None and _holds_inputs(element, accepted) else _text_of(element, column)
        for element in elements
    ]
    # more texts than windows, since many may be too short for one
    if tokenizes and None not in texts:
        elements = source.read(4 * n_windows)
        read = (_text_of(element, column) for element in elements)
        return Content(source.n_elements, texts=[text for text in read if text])
    # only now: a collate function that masks or shuffles returns others than the rows have
    batches = list(_collated(source, elements))
    if (rows := _token_rows(batches, column)) is not None:
        return Content(source.n_elements, tokens=rows)
    if None not in texts:
        raise ValueError(
            "expected token ids, got texts without a tokenizer; pass the tokenizer of the model, "
            "Probe.from_dataset(data, tokenizer)"
        )
    inputs = [_inputs_of(batch, accepted) for batch in batches]
    return Content(source.n_elements, inputs=_within_size(inputs))


def _enough(
    source: Source, rows: list[np.ndarray], n_windows: int, n_tokens: int, column: str | None
) -> list[np.ndarray]:
    """Return the rows that are not empty; of a data set with many short rows, more of them."""
    count, n = n_windows, source.n_elements
    while count < MAX_READ and (n is None or count < n):
        pieces = sum(max(1, len(row) // WINDOW_TOKENS) for row in rows if len(row) > 1)
        long_enough = sum(len(row) > VECTORS_PER_WINDOW for row in rows)
        # without the first of each, which no_sink leaves out
        n_later = sum(map(len, rows)) - len(rows)
        if n_later >= n_tokens and max(pieces, long_enough) >= n_windows:
            break
        # evenly spaced anew: twice as many are others than the first ones
        more = _token_rows(source.read(2 * count), column)
        if more is None or len(more) <= len(rows):
            break
        rows, count = more, 2 * count
    return [row for row in rows if len(row)]


def _token_rows(elements: Iterable[Any], column: str | None) -> list[np.ndarray] | None:
    """Return the token ids of elements, each a row or a batch of rows; None unless all have
    some.
    """
    rows: list[np.ndarray] = []
    for element in elements:
        of_element = _rows_of(element, column)
        if of_element is None:
            return None
        rows += of_element
    return rows


def _rows_of(element: Any, column: str | None) -> list[np.ndarray] | None:
    if isinstance(element, Mapping):
        return _rows_by_name(element, column)
    if _is_ids(element):
        return _unpadded(element, None)
    if not isinstance(element, tuple | list):
        return None
    is_batch = any(_is_ids(value) and _is_nested(value) for value in element)
    # numbers of users or of rows may come before the tokens, one for each
    later = [value for value in element if not _is_number(value, in_batch=is_batch)]
    first, second = [*later[:2], None, None][:2]
    if first is None or not _is_ids(first):
        return None
    return _unpadded(first, second if _is_mask(second, first) else None)


def _rows_by_name(element: Mapping[str, Any], column: str | None) -> list[np.ndarray] | None:
    if column is not None:
        if column not in element:
            names = ", ".join(map(repr, element))
            raise ValueError(f"expected column= among {names}, got {column!r}; pass one of these")
        names = [column]
    elif "input_ids" in element:
        names = ["input_ids"]
    else:
        names = [name for name in element if name not in _BESIDE and _is_ids(element[name])]
        usual = [name for name in TOKENS if name in names]
        names = usual[:1] or names
    others = (value for name, value in element.items() if name not in {*_BESIDE, *names})
    # pixels beside the tokens are inputs of one model, which takes both
    if len(names) != 1 or not _is_ids(element[names[0]]) or any(map(_is_input, others)):
        return None
    ids = element[names[0]]
    mask = element.get("attention_mask")
    return _unpadded(ids, mask if _is_mask(mask, ids) else None)


def _is_ids(value: Any) -> bool:
    """Return whether a value is one row of integers, or several."""
    if isinstance(value, Tensor):
        is_integer = not (value.is_floating_point() or value.is_complex())
        return is_integer and value.dtype != torch.bool and value.ndim in {1, 2}
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "ui" and value.ndim in {1, 2}
    if not isinstance(value, list):
        return False
    if value and all(isinstance(row, list) for row in value):
        return all(_is_ids(row) for row in value)
    return all(isinstance(number, int) and not isinstance(number, bool) for number in value)


def _is_mask(value: Any, ids: Any) -> bool:
    """Return whether a value marks the tokens of these ids by ones and the padding by zeros."""
    is_array = isinstance(value, Tensor | np.ndarray)
    if not (is_array or isinstance(value, list)) or len(value) != len(ids):
        return False
    if is_array and is_array == isinstance(ids, Tensor | np.ndarray) and value.shape != ids.shape:
        return False
    rows = value if _is_nested(value) else [value]
    return all(set(np.unique(np.asarray(row))) <= {0, 1} for row in rows)


def _is_nested(value: Any) -> bool:
    """Return whether a value has several rows."""
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim == 2
    return bool(value) and isinstance(value[0], list)


def _is_input(value: Any) -> bool:
    """Return whether a value is pixels, sound or embeddings: several floating-point numbers."""
    if isinstance(value, Tensor):
        return value.is_floating_point() and value.ndim > 1
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.ndim > 1


def _holds_inputs(element: Any, accepted: Collection[str] | None) -> bool:
    """Return whether a row has inputs of a model by name, beside which a text is a caption."""
    if not isinstance(element, Mapping):
        return False
    return any(
        _is_input(value)
        or type(value).__module__.startswith("PIL.")
        or (name in (accepted or ()) and name not in _BESIDE and _is_ids(value))
        for name, value in element.items()
    )


def _is_number(value: Any, *, in_batch: bool = False) -> bool:
    """Return whether a value is one number, or in a batch one for each row."""
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim == int(in_batch)
    return isinstance(value, int | float | np.number)


def _unpadded(ids: Any, mask: Any) -> list[np.ndarray]:
    """Return the token ids of one row, or of each of several, without padding."""
    rows = ids if _is_nested(ids) else [ids]
    masks: Iterable[Any] = repeat(None, len(rows))
    if mask is not None:
        masks = mask if _is_nested(ids) else [mask]
    arrays = []
    for row, of_row in zip(rows, masks, strict=True):
        array = np.array(row.cpu().numpy() if isinstance(row, Tensor) else row, dtype=np.int64)
        if of_row is not None:
            of_row = of_row.cpu().numpy() if isinstance(of_row, Tensor) else of_row
            array = array[np.asarray(of_row).astype(bool)]
        arrays.append(array)
    return arrays


def _text_of(element: Any, column: str | None) -> str | None:
    """Return the text of a row; None of one without, or with several."""
    if isinstance(element, str):
        return element
    if isinstance(element, tuple | list) and element and isinstance(element[0], str):
        return element[0]
    if not isinstance(element, Mapping):
        return None
    texts = {name: value for name, value in element.items() if isinstance(value, str)}
    if column is None and "text" in texts:
        return texts["text"]
    if column is None and len(texts) == 1:
        return next(iter(texts.values()))
    return texts.get(column or "")


def _collated(source: Source, elements: list[Any]) -> Iterator[Any]:
    """Yield batches of elements as the data's collate function makes them."""
    if source.is_batched:
        yield from elements
        return
    collate = source.collate_fn
    if collate is None:
        tensors = elements[0] if isinstance(elements[0], tuple | list) else [elements[0]]
        # a list of batches is not collated again, an image of a data set is
        if isinstance(source.data, list | tuple) and _is_batch(elements[0], tensors):
            yield from elements
            return
        collate = default_collate
    for start in range(0, len(elements), BATCH_ROWS):
        try:
            yield collate(elements[start : start + BATCH_ROWS])
        except TypeError as error:
            raise ValueError(f"{_EXPECTED}, got rows of type {_kind(elements[0])}") from error


def _is_batch(element: Any, tensors: Sequence[Any]) -> bool:
    """Return whether an element of a list is a batch: its tensors have one first dimension."""
    values = list(element.values()) if isinstance(element, Mapping) else list(tensors)
    with_rows = [value for value in values if isinstance(value, Tensor) and value.ndim]
    sizes = {len(value) for value in with_rows}
    has_scalars = any(
        isinstance(value, int | float) or (isinstance(value, Tensor) and not value.ndim)
        for value in values
    )
    return bool(with_rows) and len(sizes) == 1 and not has_scalars


def _inputs_of(batch: Any, accepted: Collection[str] | None) -> Any:
    """Return what a model's forward takes of a batch: no labels and nothing that is no tensor."""
    if isinstance(batch, Mapping):
        return _inputs_by_name(batch, accepted)
    if isinstance(batch, Tensor | np.ndarray):
        return batch
    if isinstance(batch, tuple | list) and batch:
        if isinstance(batch[0], tuple | list | Mapping):
            return _inputs_of(batch[0], accepted)
        values = [value for value in batch if isinstance(value, Tensor | np.ndarray)]
        # what has one dimension and is not the first are labels
        labels = (n for n, value in enumerate(values) if n and value.ndim < 2)
        if values:
            n_inputs = min(next(labels, len(values)), len(accepted or values))
            return tuple(values[:n_inputs])
    raise ValueError(f"{_EXPECTED}, got batches of type {_kind(batch)}")


def _inputs_by_name(batch: Mapping[str, Any], accepted: Collection[str] | None) -> dict[str, Any]:
    tensors = {
        name: value
        for name, value in batch.items()
        if name not in LABELS and isinstance(value, Tensor | np.ndarray)
    }
    labels = batch.get("labels")
    if DECODER_TOKENS in (accepted or ()) and _is_ids(labels) and _is_nested(labels):
        tensors.setdefault(DECODER_TOKENS, _decoder_tokens(torch.as_tensor(labels)))
    # a forward that takes everything names nothing
    by_forward = {name: value for name, value in tensors.items() if name in (accepted or ())}
    return by_forward or tensors


def _decoder_tokens(labels: Tensor) -> Tensor:
    """Return labels as what a decoder reads, which it makes of them in a training: as many of each
    row as all have, so that there is no padding, but those of a window at least.
    """
    is_token = labels >= 0
    n = max(int(is_token.sum(1).min()), VECTORS_PER_WINDOW)
    return labels.where(is_token, 0)[:, :n]


def _kind(value: Any) -> str:
    return (
        f"{type(value).__name__}; pass what the model's forward takes as Probe.from_inputs(batches)"
    )


def _within_size(batches: list[Any]) -> list[Any]:
    """Return evenly spaced batches of at most 128 MiB together, but one at least."""

    def size(batch: Any) -> int:
        values = batch.values() if isinstance(batch, Mapping) else batch
        tensors = [batch] if isinstance(batch, Tensor | np.ndarray) else values
        return sum(torch.as_tensor(value).nbytes for value in tensors)

    count = max(1, int(len(batches) * MAX_INPUT_BYTES / max(1, sum(map(size, batches)))))
    return [batches[index] for index in evenly(len(batches), count)]
