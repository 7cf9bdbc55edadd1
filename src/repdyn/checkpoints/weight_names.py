"""Judge the names of a checkpoint's weights: those that its model does not use, and those that it
lacks.

A weight that is left out may belong to what the configuration does not mention: the bias of a
projection, the scale of a quantised matrix, the matrices of an adapter. The model would then run,
and its values would be another model's. So each name has a reason why it is harmless, or the
checkpoint is refused.
"""

import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel

from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.weight_files import GGUF, choose_files, files_in
from repdyn.utils.printing import shorten_list

log = logging.getLogger(__name__)

_COMPUTED: Sequence[tuple[str, str]] = (
    (r"(original_)?inv_freq|freqs(_cis)?|(cos|sin)_cached", "rotary frequencies"),
    (r"position_ids|token_type_ids", "numbers of positions"),
    (r"masked_bias|(causal_|attn_|attention_)?mask", "masks of the attention"),
    (r"slopes|alibi|relative_position_index", "distances of positions"),
    (r"version", "the version of the code that saved it"),
    (r"[kvq]_scale|[kv]_proj\.output_scale|kv_scale", "scales of an inference server's cache"),
)
"""The ends of the names of what is computed, or concerns no weight, and what it is."""
_IS_COMPUTED = re.compile(rf"(.*\.)?({'|'.join(ends for ends, _ in _COMPUTED)})")
_MASK = re.compile(r"(.*\.)?(cross_?)?(attn|attention)\.bias")
"""A causal mask, in models such as GPT-2, if it is square; else a bias."""
_POSITIONS = re.compile(r"(.*\.)?(embed_positions|position_embeddings)\.weights?")
"""Computed or learned, according to their class."""
_POOLER = re.compile(r"(.*\.)?pooler\..*")
"""After the last block; the checkpoint of a model with a head may lack it."""
_OUTPUT_HEAD = re.compile(r"(.*\.)?lm_head\..*")
"""That of the language model, also inside a multimodal one."""
_HEAD = re.compile(
    r"((\w+_)?(heads?|score|cls|classifier|predictions?|qa_outputs|projector|summary|mtp)"
    r"|pred_layer|logits_proj|vocab_transform|vocab_layer_norm|embed_out|decoder|dense|output"
    r"|final_logits_bias|logit_scale)(\..*)?"
)
"""What transformers' classes, and those of reward models, put beside the model to read its last
states with."""

_ADAPTER = re.compile(
    r"(.*[._])?(lora|lokr|loha|hada|ia3|oft|vera|dora|adapters?|prompts?|prefix_encoder|base_layer"
    r"|modules_to_save|original_module)([._].*)?"
)
_QUANTISED = re.compile(
    r"(.*\.)?(\w*(weight|input|output|proj|act|global)_scales?(_inv|_\d)?|\w+_scale_inv|scales"
    r"|\w+_blocks|scale_(weight|input)|\w*zero_?points?|qweight|qzeros|g_idx|weight_packed"
    r"|weight_shape|SCB|CB|weight_format|(nested_)?(absmax|quant_map)|quant_state\..*"
    r"|scaled_fp8|comfy_quant|\w*amax)"
)
_BIAS = re.compile(r"(.*[._])?bias")
_BY_CODE = (
    "or load the model by code of your own, repdyn.sweep([(step, load), ...], probe=...), where "
    "load() returns it"
)
_NUMBER = re.compile(r"\.(\d+)(?=\.)")
_LISTS = (nn.ModuleList, nn.Sequential)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint's files, without its values."""

    dtype: torch.dtype
    shape: tuple[int, ...]


_DTYPES = {
    "I8": torch.int8,
    "U8": torch.uint8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return what the weight files hold that are loaded from a folder, by name.

    Only integers and truth values are told apart from floating point numbers. A GGUF file, whose
    tensors have other names, has none here.
    """
    if folder.suffix == GGUF:
        return {}
    chosen = choose_files(files_in(folder))
    tensors = {}
    for name in chosen:
        if name.endswith(".safetensors"):
            with safe_open(folder / name, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118, a method of the file
                    stored = file.get_slice(key)
                    dtype = _DTYPES.get(stored.get_dtype(), torch.float32)
                    tensors[key] = StoredTensor(dtype, tuple(stored.get_shape()))
        elif name.endswith(".bin"):
            content = torch.load(folder / name, map_location="cpu", weights_only=True, mmap=True)
            for key, tensor in content.items():
                if isinstance(tensor, torch.Tensor):
                    tensors[key] = StoredTensor(tensor.dtype, tuple(tensor.shape))
    return tensors


def require_known_names(
    model: PreTrainedModel,
    unused: Collection[str],
    stored: Mapping[str, StoredTensor],
    *,
    prefix: str = "",
) -> None:
    """Raise a CheckpointError for weights that the model does not use, unless they are harmless.

    Args:
        model: the model, loaded.
        unused: names of weights of the checkpoint that transformers did not use.
        stored: what the files hold, as :func:`stored_tensors` returns it.
        prefix: what was left out before all names, as "module.".
    """
    unused = sorted(name for name in unused if not _is_harmless(name, stored, model))
    # the most telling reason first: an adapter's weights would also be unknown names
    _require_no_adapter(unused)
    _require_no_quantisation(model, unused, stored)
    _require_every_block(model, unused)
    base = f"{model.base_model_prefix}."
    has_base = any(name.removeprefix(prefix).startswith(base) for name in stored)
    # what was around the model keeps its name where a prefix was left out
    outside = {name for name in unused if prefix and name in stored}
    inside = [
        name
        for name in unused
        if name not in outside and _is_inside(name, model, base if has_base else None)
    ]
    beside = [name for name in unused if name not in inside]
    _require_one_model(model, outside, prefix)
    if inside:
        cause = "config.json may be another model's"
        if all(map(_BIAS.fullmatch, inside)):
            cause = (
                "config.json may lack the setting that says there are biases (attention_bias, "
                "mlp_bias, use_bias, qkv_bias)"
            )
        raise CheckpointError(
            f"expected a checkpoint of which {type(model).__name__} uses every weight, got "
            f"{len(inside)} that it does not have: {shorten_list(inside)}; {cause}: mend it, "
            f"{_BY_CODE}"
        )
    # heads are left out in silence; anything else beside the model is named, and no error
    around = prefix.removesuffix(base)
    if strange := [name for name in beside if not _is_head(name.removeprefix(around))]:
        _say_once(
            f"not read, since it is beside {type(model).__name__} in the checkpoint, not in it: "
            f"{shorten_list(strange)}"
        )


def require_all_weights(model: PreTrainedModel, absent: Sequence[str]) -> None:
    """Raise a CheckpointError for weights that the checkpoint lacks."""
    if absent:
        raise CheckpointError(
            f"{len(absent)} weights of {type(model).__name__} are not in the checkpoint and would "
            f"be random: {', '.join(absent[:3])}"
        )


def require_shapes(
    model: PreTrainedModel, differing: Collection[tuple[str, Sequence[int], Sequence[int]]]
) -> None:
    """Raise a CheckpointError for weights of other shapes than the model's.

    Args:
        model: the model, as its configuration describes it.
        differing: their names, with the shapes of the checkpoint and of the model.
    """
    if differing:
        name, stored, expected = min(differing)
        raise CheckpointError(
            f"expected weights of the shapes of {type(model).__name__}, got {len(differing)} of "
            f"others, such as {name} of {tuple(stored)} for {tuple(expected)}; mend config.json "
            "(vocab_size, hidden_size, intermediate_size), which may be another model's"
        )


def missing_weights(model: nn.Module, missing: Iterable[str]) -> list[str]:
    """Return the missing names without those that nothing that is measured needs.

    These are the pooler's, after the last block, and positions that are a function of their number.
    """
    return sorted(
        name for name in missing if not _POOLER.fullmatch(name) and not _is_sinusoidal(name, model)
    )


def _is_harmless(name: str, stored: Mapping[str, StoredTensor], model: nn.Module) -> bool:
    # a buffer of the mask and a bias of the projection have one name: a mask is square
    if _MASK.fullmatch(name):
        shapes = [tensor.shape for key, tensor in stored.items() if f".{key}".endswith(f".{name}")]
        return any(len(shape) > 1 and shape[-1] == shape[-2] for shape in shapes)
    is_computed = _IS_COMPUTED.fullmatch(name) or _POOLER.fullmatch(name)
    return is_computed is not None or _is_sinusoidal(name, model)


def _is_inside(name: str, model: PreTrainedModel, base: str | None) -> bool:
    """Return whether a name is that of a part of the model, without its head unless it is loaded;
    without a common beginning ``base`` of these names, whatever is not known as a head is one.
    """
    # a model without its head leaves the head's weights out, as it should
    if _OUTPUT_HEAD.fullmatch(name):
        return model.base_model is not model
    if base is not None:
        return name.startswith(base) and not _HEAD.fullmatch(name.removeprefix(base))
    parts = {child for child, _ in model.base_model.named_children()}
    return name.partition(".")[0] in parts or not _HEAD.fullmatch(name)


def _is_head(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in (_HEAD, _OUTPUT_HEAD))


def _is_sinusoidal(name: str, model: nn.Module) -> bool:
    """Return whether a name is that of positions which the model computes by sine and cosine."""
    if not _POSITIONS.fullmatch(name):
        return False
    # the name in the checkpoint and that in the model may each have a prefix that the other lacks
    path = f".{name.rpartition('.')[0]}"
    return any(
        path.endswith(f".{at}") or f".{at}".endswith(path)
        for at, module in model.named_modules()
        if "Sinusoidal" in type(module).__name__
    )


def _require_no_adapter(unused: Sequence[str]) -> None:
    if changing := [name for name in unused if _ADAPTER.fullmatch(name)]:
        raise CheckpointError(
            f"expected the weights of a model, got those of an adapter among them, "
            f"{len(changing)} that would be left out: {shorten_list(changing)}; merge them (peft: "
            "model.merge_and_unload()) and save that, or save the adapter in a folder of its own "
            "with its adapter_config.json"
        )


def _require_no_quantisation(
    model: PreTrainedModel, unused: Sequence[str], stored: Mapping[str, StoredTensor]
) -> None:
    scales = [name for name in unused if _QUANTISED.fullmatch(name)]
    # matrices of integers without their scales would be loaded as if they were the weights
    if getattr(model.config, "quantization_config", None) is None:
        scales += [
            name
            for name, tensor in stored.items()
            if name.endswith(".weight")
            and not tensor.dtype.is_floating_point
            and len(tensor.shape) > 1
        ]
    if scales:
        raise CheckpointError(
            "expected weights as they are, or with a quantization_config in config.json that says "
            f"how they are quantised, got scales or integers that {type(model).__name__} does not "
            f"use: {shorten_list(scales)}; add the quantization_config of the tool that made them, "
            "or dequantise the weights (weight * scale) and save those"
        )


def _require_every_block(model: PreTrainedModel, unused: Iterable[str]) -> None:
    """Check that the model has all blocks of the checkpoint: with fewer in its configuration the
    others are ignored.
    """
    base = f"{model.base_model_prefix}."
    # a number in a name that is no index of a list of modules, as in "conv1.2", means nothing here
    lists = {
        name.removeprefix(base): len(module)
        for name, module in model.named_modules()
        if isinstance(module, _LISTS)
    }

    def is_beyond(name: str) -> bool:
        numbers = _NUMBER.finditer(name)
        return any(int(at[1]) >= lists.get(name[: at.start()], math.inf) for at in numbers)

    cut_off = sorted(filter(is_beyond, (name.removeprefix(base) for name in unused)))
    if cut_off:
        raise CheckpointError(
            f"the checkpoint has blocks that its configuration lacks, {len(cut_off)} weights such "
            f"as {cut_off[0]}; the model would be cut off without notice"
        )


def _require_one_model(model: PreTrainedModel, outside: Iterable[str], prefix: str) -> None:
    """Check that a prefix was left out because the model is inside another, not as one of two."""
    # a weight outside that ends as one of the model's: the same model once more
    names = {name for name, _ in model.base_model.named_parameters()}
    for name in outside:
        endings = [parameter for parameter in names if name.endswith(f".{parameter}")]
        if endings:
            raise CheckpointError(
                f"expected the weights of one model, got two, {prefix}* and "
                f"{name.removesuffix(endings[0])}*; save the one to be measured alone, {_BY_CODE}"
            )


@cache
def _say_once(text: str) -> None:
    log.warning("%s", text)
