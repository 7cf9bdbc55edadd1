"""Load models from the weight files of a checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from repdyn.hub.client import RemoteFile
from repdyn.hub.errors import CheckpointError, model_errors
from repdyn.hub.options import Loading
from repdyn.hub.pickled import memory_of_file
from repdyn.hub.weight_files import choose_files, is_weight_file
from repdyn.utils.quiet import without_reports

# Modules after the last block, which the checkpoint of a model with a head may lack.
_AFTER_THE_BLOCKS = re.compile(r"(.*\.)?pooler\..*")

# Names of architectures in configurations; that of BERT's pretraining has a head for masked tokens too.
_CAUSAL_HEAD = re.compile(r".*(ForCausalLM|LMHeadModel)")
_MASKED_HEAD = re.compile(r".*ForMaskedLM|BertForPreTraining")

_NUMBER = re.compile(r"\.\d+(?=\.)")

MAX_LAYERS = 10_000
"""Largest number of layers that is built: a larger one is an error of the configuration, and would fill the memory."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Precisions that a model can be converted to."""


def load_model(
    folder: Path, loading: Loading, offload_folder: Path | None = None, *, with_head: bool = False
) -> nn.Module:
    """Load a model in evaluation mode, with every weight from the checkpoint.

    Args:
        folder: the checkpoint, with configuration and weights.
        loading: device, precision and placement.
        offload_folder: where a device map may put weights on disk; must exist as long as the model.
        with_head: load the language-modelling head too, if the configuration names one and the checkpoint holds its
            weights.

    Raises:
        CheckpointError: the files do not load or do not fit into memory, a weight is missing, or one is not finite.
    """
    with model_errors("the checkpoint does not load"):
        require_regular_files(folder)
        _require_weights_inside(folder)
        _require_memory(folder, loading)
    placement = {"device_map": loading.device_map, "offload_folder": offload_folder} if loading.device_map else {}
    with model_errors("the checkpoint does not load"), remote_code_errors(), without_reports():
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=loading.trust_remote_code)
        if not loading.trust_remote_code:
            _check_no_remote_code(config)
        _require_few_layers(config)
        # "auto" is the precision in which a live run measures.
        auto_class = _auto_class(config) if with_head else AutoModel
        model, report = auto_class.from_pretrained(
            folder,
            config=config,
            dtype=DTYPES.get(loading.dtype, "auto"),
            local_files_only=True,
            trust_remote_code=loading.trust_remote_code,
            output_loading_info=True,
            **placement,
        )
        if auto_class is not AutoModel and _absent(report["missing_keys"]):
            return load_model(folder, loading, offload_folder)
        if loading.device_map is None:
            model = model.to(loading.device)
        _require_every_weight(model, report["missing_keys"], report["mismatched_keys"])
        _require_every_block(model, report["unexpected_keys"])
        _require_finite(model)
        return model.eval()


def _auto_class(config: PreTrainedConfig) -> Any:
    """Return the class that loads the head that the configuration names; without a head if it names none."""
    name = next(iter(config.architectures or ()), "")
    heads = {_CAUSAL_HEAD: AutoModelForCausalLM, _MASKED_HEAD: AutoModelForMaskedLM}
    return next((auto_class for pattern, auto_class in heads.items() if pattern.fullmatch(name)), AutoModel)


@contextmanager
def remote_code_errors(what: str = "it") -> Iterator[None]:
    """Name the option that allows remote code, where transformers names an argument of its own."""
    try:
        yield
    except ValueError as error:
        if "contains custom code" not in str(error):
            raise
        raise CheckpointError(
            f"{what} needs Python code of its own repository; read that, then allow it with --trust-remote-code"
        ) from error


def require_regular_files(folder: Path) -> None:
    """Check that the files of a folder can be read at once: a named pipe would be waited for."""
    for path in folder.iterdir():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise CheckpointError(f"expected regular files, but {path.name} is a named pipe or a device; remove it")


def _require_weights_inside(folder: Path) -> None:
    """Check that the weights are in this folder: others would be loaded as if they were this checkpoint's."""
    if (folder / "adapter_config.json").exists():
        raise CheckpointError(
            "it is an adapter (adapter_config.json) of another model; merge the two and sweep the result"
        )
    for path in folder.glob("*.index.json"):
        if not is_weight_file(path.name):
            continue
        index = json.loads(path.read_text(encoding="utf-8"))
        shards = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(shards, dict):
            raise CheckpointError(f"{path.name} is no index of weights: it has no weight_map")
        for name in sorted({str(name) for name in shards.values()}):
            if name != Path(name).name or not is_weight_file(name):
                raise CheckpointError(f"{path.name} names {name!r:.80}, which is no weight file of this folder")


def _check_no_remote_code(config: PreTrainedConfig) -> None:
    """Check the attention implementation: one with a slash is a repository of compiled code that would be run."""
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    named = [getattr(part, f"_{what}_implementation", None) for part in parts for what in ("attn", "experts")]
    if elsewhere := next((str(name) for name in named if "/" in str(name)), None):
        raise CheckpointError(
            f"it requires code of another repository, {elsewhere!r:.80}; read that, then allow it with "
            "--trust-remote-code"
        )


def _require_few_layers(config: PreTrainedConfig) -> None:
    n_layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    if isinstance(n_layers, int) and n_layers > MAX_LAYERS:
        raise CheckpointError(f"its configuration has {n_layers} layers, more than the {MAX_LAYERS} that are supported")


def _require_memory(folder: Path, loading: Loading) -> None:
    """Check that the model fits into memory: Linux would kill the process otherwise."""
    here = {path.name: RemoteFile(path.stat().st_size, None) for path in folder.iterdir()}
    needed = sum(_bytes_in_memory(folder / name, loading.dtype) for name in choose_files(here))
    available = psutil.virtual_memory().available
    if needed > available and loading.device_map is None:
        precision = "their own precision" if loading.dtype == "auto" else loading.dtype
        raise CheckpointError(
            f"out of memory: its weights take {needed / 1e9:.1f} GB in {precision}, and {available / 1e9:.1f} GB are "
            "free; try --dtype bfloat16 or --device-map auto"
        )


def _bytes_in_memory(path: Path, dtype: str) -> float:
    """Return the memory that the weights of a file take in a precision; 0 for other files."""
    if path.suffix == ".bin":
        return memory_of_file(path)
    if path.suffix != ".safetensors":
        return 0
    growth = 1.0
    if dtype != "auto":
        with model_errors(f"{path.name} does not load"), safe_open(path, framework="pt") as weights:
            stored = next((weights.get_tensor(name).dtype for name in weights.keys()), torch.float32)  # noqa: SIM118
            growth = DTYPES[dtype].itemsize / stored.itemsize
    return growth * path.stat().st_size


def _require_every_weight(model: PreTrainedModel, missing: Iterable[str], mismatched: Iterable[object]) -> None:
    if absent := _absent(missing):
        raise CheckpointError(
            f"{len(absent)} weights of {type(model).__name__} are not in the checkpoint and would be random: "
            f"{', '.join(absent[:3])}"
        )
    if wrong := list(mismatched):
        raise CheckpointError(f"weights of another shape than {type(model).__name__}'s: {wrong[0]}")


def _require_every_block(model: PreTrainedModel, unexpected: Iterable[str]) -> None:
    """Check that the model has all blocks of the checkpoint: with fewer in its configuration the others are ignored."""

    def position_free(name: str) -> str:
        return _NUMBER.sub(".#", name.removeprefix(f"{model.base_model_prefix}."))

    known = {position_free(name) for name, _ in model.named_parameters()}
    if cut_off := sorted(name for name in unexpected if _NUMBER.search(name) and position_free(name) in known):
        raise CheckpointError(
            f"the checkpoint has blocks that its configuration lacks, {len(cut_off)} weights such as {cut_off[0]}; "
            "the model would be cut off without notice"
        )


def _absent(missing: Iterable[str]) -> list[str]:
    return sorted(name for name in missing if not _AFTER_THE_BLOCKS.fullmatch(name))


def _require_finite(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.device.type != "meta" and not bool(torch.isfinite(parameter).all()):
            raise CheckpointError(f"its weights are not finite: {name} holds NaN or infinity")
