"""The weights of one checkpoint: which files to fetch, and a model made of them that is what was published."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from repdyn.hub.client import Files, RemoteFile
from repdyn.hub.errors import CheckpointError, model_errors
from repdyn.utils.quiet import without_reports

# One format is enough; the first that a commit has is taken. Pickles are only read with weights_only=True.
_FORMATS = (
    re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?"),
    re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?"),
)
_BESIDE = ("config.json", "generation_config.json")
# What a checkpoint of a head model may lack without loss: it comes after every block.
_AFTER_THE_BLOCKS = re.compile(r"(.*\.)?pooler\..*")

MOST_LAYERS = 10_000
"""Of any model; a configuration that asks for more is mistaken, and building them would fill the memory."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Precisions a model can be turned into, beside "auto"."""


@dataclass(frozen=True)
class Loading:
    """How models are loaded.

    Args:
        device: where a model runs; with a device map, where its input goes.
        dtype: precision of the weights, "auto" for the one they were published in. Kernels compute in float32 and
            float64 whatever it is.
        device_map: "auto" lets accelerate spread a model that is larger than the GPU over GPU, memory and disk; or the
            place of each module.
        trust_remote_code: run the Python code a repository brings along.
    """

    device: str = "cpu"
    dtype: str = "auto"
    device_map: str | Mapping[str, str] | None = None
    trust_remote_code: bool = False


def choose_files(files: Files, subfolder: str = "", *, with_code: bool = False) -> Files:
    """The files to fetch of a commit: one weight format, and the configuration.

    Args:
        files: every file of the commit.
        subfolder: where in the repository the checkpoint lies.
        with_code: fetch Python files too.

    Raises:
        CheckpointError: no configuration, or no weights in a format that is read.
    """
    prefix = f"{subfolder}/" if subfolder else ""
    here = {name.removeprefix(prefix): name for name in files if name.startswith(prefix)}
    if "config.json" not in here:
        raise CheckpointError(f"it has no {prefix}config.json, so the model's architecture is not known")
    for form in _FORMATS:
        weights = [name for name in here if form.fullmatch(name)]
        if any(not name.endswith(".json") for name in weights):
            code = [name for name in here if with_code and name.endswith(".py")]
            chosen = _without_doubles(weights) + [name for name in _BESIDE if name in here] + code
            return {here[name]: files[here[name]] for name in chosen}
    others = sorted(name for name in here if "/" not in name)
    raise CheckpointError(
        "it has no weights that can be read, model*.safetensors or pytorch_model*.bin; its files are "
        f"{', '.join(others)}"
    )


def load_model(folder: Path, loading: Loading, offload_folder: Path | None = None) -> nn.Module:
    """The bare model (no head) of a checkpoint, in evaluation mode, every weight of it from the checkpoint.

    Args:
        folder: with configuration and weights.
        loading: how.
        offload_folder: where a device map may put weights on disk; to be kept as long as the model.

    Raises:
        CheckpointError: the files do not load, do not fit into memory, leave a weight of the model at random, or hold
            a weight that is not finite.
    """
    with model_errors("the checkpoint does not load"):
        _require_weights_inside(folder)
        _require_memory(folder, loading)
    placement = {"device_map": loading.device_map, "offload_folder": offload_folder} if loading.device_map else {}
    with model_errors("the checkpoint does not load"), code_refused(), without_reports():
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=loading.trust_remote_code)
        if not loading.trust_remote_code:
            _check_no_remote_code(config)
        _require_few_layers(config)
        # The precision the weights were saved in is the one a live run measures them in.
        model, report = AutoModel.from_pretrained(
            folder,
            config=config,
            dtype=DTYPES.get(loading.dtype, "auto"),
            local_files_only=True,
            trust_remote_code=loading.trust_remote_code,
            output_loading_info=True,
            **placement,
        )
        if loading.device_map is None:
            model = model.to(loading.device)
        _require_every_weight(model, report["missing_keys"], report["mismatched_keys"])
        _require_finite(model)
        return model.eval()


@contextmanager
def code_refused(what: str = "it") -> Iterator[None]:
    """Name the option that allows remote code, where transformers names an argument of its own."""
    try:
        yield
    except ValueError as error:
        if "contains custom code" not in str(error):
            raise
        raise CheckpointError(
            f"{what} needs Python code of its own repository; read that, then allow it with --trust-remote-code"
        ) from error


def _require_weights_inside(folder: Path) -> None:
    """Refuse weights that lie elsewhere: they would be loaded as if they were this checkpoint's."""
    if (folder / "adapter_config.json").exists():
        raise CheckpointError(
            "it is an adapter (adapter_config.json), whose model lies elsewhere; merge the two and sweep what comes of "
            "that"
        )
    for path in folder.glob("*.index.json"):
        if not any(form.fullmatch(path.name) for form in _FORMATS):
            continue
        index = json.loads(path.read_text(encoding="utf-8"))
        shards = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(shards, dict):
            raise CheckpointError(f"{path.name} is no index of weights: it has no weight_map")
        for name in sorted({str(name) for name in shards.values()}):
            if name != Path(name).name or not any(form.fullmatch(name) for form in _FORMATS):
                raise CheckpointError(f"{path.name} names {name!r:.80}, which is no file of weights beside it")


def _check_no_remote_code(config: PreTrainedConfig) -> None:
    """An attention implementation with a slash is a repository of compiled code, which is fetched and run."""
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    named = [getattr(part, f"_{what}_implementation", None) for part in parts for what in ("attn", "experts")]
    if elsewhere := next((str(name) for name in named if "/" in str(name)), None):
        raise CheckpointError(
            f"it asks for code of another repository, {elsewhere!r:.80}; read that, then allow it with "
            "--trust-remote-code"
        )


def _require_few_layers(config: PreTrainedConfig) -> None:
    n_layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    if isinstance(n_layers, int) and n_layers > MOST_LAYERS:
        raise CheckpointError(
            f"its configuration asks for {n_layers} layers, more than the {MOST_LAYERS} that are built"
        )


def _without_doubles(names: list[str]) -> list[str]:
    """A whole file and the same weights in shards are the same thing twice; the whole one is taken."""
    whole = [name for name in names if "-of-" not in name and not name.endswith(".json")]
    return whole or names


def _require_memory(folder: Path, loading: Loading) -> None:
    """Refuse a model that cannot fit: Linux would kill the process rather than refuse the memory."""
    if loading.device_map is not None:
        return
    here = {path.name: RemoteFile(path.stat().st_size, None) for path in folder.iterdir()}
    needed = sum(_bytes_in_memory(folder / name, loading.dtype) for name in choose_files(here))
    available = psutil.virtual_memory().available
    if needed > available:
        precision = "their own precision" if loading.dtype == "auto" else loading.dtype
        raise CheckpointError(
            f"out of memory: its weights take {needed / 1e9:.1f} GB in {precision}, and {available / 1e9:.1f} GB are "
            "free; try --dtype bfloat16 or --device-map auto"
        )


def _bytes_in_memory(path: Path, dtype: str) -> float:
    """What the weights of a file take once they are loaded in a precision; 0 for other files."""
    if path.suffix == ".bin":
        return path.stat().st_size
    if path.suffix != ".safetensors":
        return 0
    growth = 1.0
    if dtype != "auto":
        with model_errors(f"{path.name} does not load"), safe_open(path, framework="pt") as weights:
            stored = next((weights.get_tensor(name).dtype for name in weights.keys()), torch.float32)  # noqa: SIM118
            growth = DTYPES[dtype].itemsize / stored.itemsize
    return growth * path.stat().st_size


def _require_every_weight(model: PreTrainedModel, missing: Iterable[str], mismatched: Iterable[object]) -> None:
    absent = [name for name in missing if not _AFTER_THE_BLOCKS.fullmatch(name)]
    if absent:
        raise CheckpointError(
            f"{len(absent)} weights of {type(model).__name__} are not in the checkpoint and would be random: "
            f"{', '.join(sorted(absent)[:3])}"
        )
    if wrong := list(mismatched):
        raise CheckpointError(f"weights of another shape than {type(model).__name__}'s: {wrong[0]}")


def _require_finite(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.device.type != "meta" and not bool(torch.isfinite(parameter).all()):
            raise CheckpointError(f"its weights are not finite: {name} holds NaN or infinity")
