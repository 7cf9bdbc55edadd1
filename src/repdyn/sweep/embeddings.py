"""Statistics of the input embeddings of a swept checkpoint: they change smoothly, so that the weights of another step
stand out."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from transformers import PreTrainedModel

from repdyn.utils.files import write_atomically

log = logging.getLogger(__name__)

N_COMPARED = 1024
"""Number of embeddings that are kept of the first checkpoint, evenly spaced over the vocabulary: 4 MB in width 1024."""
_NAME, _TENSOR = "input_embeddings.safetensors", "embeddings"


def input_embeddings(model: nn.Module) -> Tensor | None:
    """Return the input embeddings, (n_tokens, dim); None for a model that has none in its memory."""
    try:
        embeddings = model.get_input_embeddings() if isinstance(model, PreTrainedModel) else None
    except NotImplementedError:  # a model of sounds, or of two towers
        return None
    weight = getattr(embeddings, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or weight.device.type == "meta":
        return None
    return weight.detach()


def median_norm(embeddings: Tensor) -> float:
    """Return the median Euclidean norm."""
    return float(torch.linalg.vector_norm(embeddings, dim=1, dtype=torch.float32).median())


def cosine_to_first(embeddings: Tensor, folder: Path, step: int, *, is_first: bool) -> tuple[int, float] | None:
    """Compare input embeddings with those of the checkpoint of the run that was measured first.

    Args:
        embeddings: shape (n_tokens, dim).
        folder: where those of the first checkpoint are kept, :data:`N_COMPARED` of them.
        step: of the embeddings.
        is_first: whether to keep these if there are none, or none that can be read.

    Returns:
        The step of the first checkpoint, and the median cosine, in [-1, 1]; None if there is nothing to compare with,
        or embeddings of another shape.
    """
    places = torch.linspace(0, len(embeddings) - 1, min(N_COMPARED, len(embeddings))).long()
    own = embeddings.detach()[places.to(embeddings.device)].float().cpu()
    path = folder / _NAME
    try:
        with safe_open(path, framework="pt") as file:
            first, first_step = file.get_tensor(_TENSOR), int((file.metadata() or {})["step"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        if not is_first:
            return None
        if not isinstance(error, FileNotFoundError):
            log.warning("The input embeddings in %s cannot be read and are replaced by those of step %d", path, step)
        try:
            kept = {_TENSOR: own.contiguous()}
            write_atomically(path, lambda partial: save_file(kept, partial, metadata={"step": str(step)}))
        except (OSError, SafetensorError) as failure:
            log.warning("The input embeddings of step %d could not be kept for comparison: %s", step, failure)
            return None
        first, first_step = own, step
    if first.shape != own.shape:
        return None
    return first_step, float(cosine_similarity(own.double(), first.double(), dim=1).median())
