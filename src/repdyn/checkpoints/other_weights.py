"""Warn of weights beside those that are read.

A folder may hold the same ones in another format, or stale ones of an earlier save.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from repdyn.checkpoints.weight_files import Files, sets_of_weights, total_bytes
from repdyn.utils.printing import shorten_list

log = logging.getLogger(__name__)

_N_COMPARED = 8
"""Tensors that are compared, spread over all."""
_OTHER_SIZE = 0.01
"""Relative difference in bytes from which two single formats hold other weights."""


def warn_of_other_weights(folder: Path) -> None:
    """Log a warning where a folder holds weights beside those that are read, and other ones.

    transformers reads one safetensors file, else its shards, else one PyTorch file, else its
    shards. A few tensors of each are compared, in the coarser of their precisions.
    """
    # the first set is the one that transformers reads
    read, *others = sets_of_weights(path.name for path in folder.iterdir())
    for names in others:
        try:
            with ExitStack() as files:
                differing = _differing(
                    _tensors(folder, read, files), _tensors(folder, names, files)
                )
        except Exception as error:  # whatever a damaged file makes its reader raise
            log.warning(
                "%s: %s cannot be compared with %s, which is read: %s",
                folder.name,
                shorten_list(names),
                shorten_list(read),
                type(error).__name__,
            )
            continue
        if differing:
            log.warning(
                "%s: %s is read, as transformers does; %s beside it has other weights, such as "
                "those of %s; delete what is stale",
                folder.name,
                shorten_list(read),
                shorten_list(names),
                differing,
            )


def warn_of_other_sizes(name: object, files: Files) -> None:
    """Log a warning where a commit has shards beside a single file of the same format, and of
    another size: nothing else is known without a download.
    """
    read, *others = sets_of_weights(files)
    suffix = Path(read[0]).suffix
    n_bytes = total_bytes({key: files[key] for key in read})
    for names in others:
        n_others = total_bytes({key: files[key] for key in names})
        if Path(names[0]).suffix == suffix and abs(n_others - n_bytes) > _OTHER_SIZE * n_bytes:
            log.warning(
                "%s: %s is read, as transformers does; %s beside it has another size, and may hold "
                "other weights",
                name,
                shorten_list(read),
                shorten_list(names),
            )


def _tensors(
    folder: Path, names: Iterable[str], files: ExitStack
) -> dict[str, Callable[[], Tensor]]:
    """Return what the files of a set hold, by name, each read when it is called."""
    tensors: dict[str, Callable[[], Tensor]] = {}
    for name in names:
        if name.endswith(".safetensors"):
            file = files.enter_context(safe_open(folder / name, framework="pt"))
            # read when it is compared: a few of all
            for key in file.keys():  # noqa: SIM118, a method of the file
                tensors[key] = lambda file=file, key=key: file.get_tensor(key)
        else:
            content = torch.load(folder / name, map_location="cpu", weights_only=True, mmap=True)
            for key, tensor in content.items():
                if not isinstance(tensor, Tensor):
                    continue
                tensors[key] = lambda tensor=tensor: tensor
    return tensors


def _differing(
    first: dict[str, Callable[[], Tensor]], second: dict[str, Callable[[], Tensor]]
) -> str | None:
    """Return the name of a tensor that differs between two sets of weights; None if none does."""
    shared = sorted(first.keys() & second.keys())
    # no name in common: the first of the other names tells what they are
    if not shared:
        return min(second, default=None)
    places = np.linspace(0, len(shared) - 1, min(_N_COMPARED, len(shared))).round().astype(int)
    for name in (shared[place] for place in places):
        if not _are_equal(first[name](), second[name]()):
            return name
    return None


def _are_equal(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal in the coarser of their precisions."""
    # a checkpoint may have been saved in half precision beside the same weights in float32
    coarser = min(tensor.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
    return tensor.shape == other.shape and torch.equal(tensor.to(coarser), other.to(coarser))
