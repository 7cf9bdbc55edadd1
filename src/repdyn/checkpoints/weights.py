"""Load models from the files of a checkpoint: a folder of ``save_pretrained``, a Lightning
checkpoint, a GGUF file.

A model that loads is not yet the right one: a weight that is missing is drawn at random, and one
that has another name is left out, with a warning at most. So every weight has to come from the
checkpoint, and every weight of the checkpoint has to be used, by
:mod:`repdyn.checkpoints.weight_names`. No pickle is run, and no code that comes with a model unless
it is allowed.

- :func:`load_model`: by transformers, with the names that wrappers have changed.
- :func:`_load_adapter`: an adapter, merged onto the model that it changes.
- :func:`load_lightning`: Lightning's file of :class:`repdyn.models.LanguageModel`.
"""

import inspect
import json
import logging
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, repeat
from pathlib import Path
from typing import Any, cast

import psutil
import torch
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForTextEncoding,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from repdyn.checkpoints.errors import CheckpointError, NoConnectionError, model_errors
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.options import Loading
from repdyn.checkpoints.other_weights import warn_of_other_weights
from repdyn.checkpoints.weight_files import (
    ADAPTER,
    GGUF,
    choose_files,
    files_in,
    is_weight_file,
)
from repdyn.checkpoints.weight_names import (
    missing_weights,
    require_all_weights,
    require_known_names,
    require_shapes,
    stored_tensors,
)
from repdyn.models import LanguageModel
from repdyn.utils.printing import shorten_list, without_reports

# Names of architectures in configurations; that of BERT's pretraining has a head for masked tokens
# too.
_CAUSAL_HEAD = re.compile(r".*(ForCausalLM|LMHeadModel)")
_MASKED_HEAD = re.compile(r".*ForMaskedLM|BertForPreTraining")
_ENCODER_ALONE = re.compile(r".*EncoderModel")
"""The encoder of an encoder-decoder, such as T5's."""

_WRAPPERS = re.compile(
    r"(?<![^.])(?:(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.)+"
)
"""What wrappers of torch, also around single blocks, put before or into the names of weights."""

OF_ONES_OWN = (
    'or measure a class of your own by a sweep with load="module:function", where function(path) '
    "returns the model"
)

_POINTER = b"version https://git-lfs"
"""How the text begins that a clone without git-lfs has in place of a large file."""

_OWN_ARGUMENTS = tuple(inspect.signature(LanguageModel).parameters)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Precisions that a model can be converted to."""

log = logging.getLogger(__name__)


def load_model(
    folder: Path, loading: Loading, offload_folder: Path | None = None, *, with_head: bool = False
) -> nn.Module:
    """Load a model in evaluation mode, with every weight from the checkpoint.

    Args:
        folder: the checkpoint, with configuration and weights, or a GGUF file, of which the weights
            are dequantised; an adapter is merged onto its base model.
        loading: device, precision, placement and attention; where the attention is not available,
            that of the configuration is used, with a warning.
        offload_folder: where a device map may put weights on disk; must exist as long as the model.
        with_head: load the language-modelling head too, if there is one and the checkpoint holds
            its weights.
    """
    with model_errors("the checkpoint does not load"), without_reports():
        base = base_of(folder, with_code=loading.trust_remote_code)
        if base is not None:
            return _load_adapter(folder, base, loading, offload_folder, with_head=with_head)
        files = _weight_files(folder)  # refuses a folder without weights
        for file in files:
            _require_whole(file)
        if folder.suffix != GGUF:
            warn_of_other_weights(folder)
        config = AutoConfig.from_pretrained(
            **place_of(folder),
            local_files_only=True,
            trust_remote_code=loading.trust_remote_code,
        )
        if not loading.trust_remote_code:
            _check_no_remote_code(config)
        if loading.device_map is None:
            _require_free(sum(file.stat().st_size for file in files) * _growth(config, loading))
        settings = _settings(folder, config, loading, offload_folder)
        # without the head unless it is needed: it is as large as the embeddings, and may be missing
        headless = _class_without_head(config)
        auto_class = (_class_with_head(config) or headless) if with_head else headless
        model, absent, report = _from_pretrained(auto_class, folder, settings, loading.attention)
        prefix, renamings = _renamings(report["unexpected_keys"], absent)
        # saved from a wrapped model: loaded a second time, by names without the wrapper's
        if renamings:
            # the names were not known before transformers had looked for them
            settings["key_mapping"] = renamings
            model, absent, report = _from_pretrained(
                auto_class, folder, settings, loading.attention
            )
        if auto_class is not headless and absent:
            # the configuration names a head that the checkpoint does not hold
            return load_model(folder, loading, offload_folder)
        _require_right_weights(model, folder, absent, report, prefix=prefix)
        if loading.device_map is None:
            # a device map has placed it already
            model = model.to(loading.device)
        _require_finite(model)
        return model.eval()


def _settings(
    folder: Path, config: PreTrainedConfig, loading: Loading, offload_folder: Path | None
) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` for the weights of a checkpoint."""
    settings: dict[str, Any] = {
        "local_files_only": True,
        "trust_remote_code": loading.trust_remote_code,
        "config": config,
        # "auto" is the precision in which a live run measures
        "dtype": DTYPES.get(loading.dtype) or "auto",
        "output_loading_info": True,
        # refused afterwards, with the shapes in the message
        "ignore_mismatched_sizes": True,
    }
    if folder.suffix == GGUF:
        settings["quantization_config"] = GgufConfig(dequantize=True)
    if loading.device_map:
        settings |= {"device_map": loading.device_map, "offload_folder": offload_folder}
    return settings


def _growth(config: PreTrainedConfig, loading: Loading) -> float:
    """Return how many times as large as on disk the weights are in the requested precision."""
    # half precision on disk takes twice its size in memory in float32
    requested = DTYPES.get(loading.dtype)
    stored = getattr(config, "dtype", None)
    if requested is None or not isinstance(stored, torch.dtype):
        return 1.0
    return requested.itemsize / stored.itemsize


def _require_right_weights(
    model: Any, folder: Path, absent: Sequence[str], report: Mapping[str, Any], *, prefix: str
) -> None:
    """Raise a CheckpointError unless the model's weights are those of its checkpoint, all of them.

    Args:
        model: the model, loaded.
        folder: its checkpoint.
        absent: names of weights that the checkpoint lacks.
        report: what transformers reports of the loading.
        prefix: what was left out before all names.
    """
    stored = {_WRAPPERS.sub("", name): tensor for name, tensor in stored_tensors(folder).items()}
    # first, since names of an adapter or of quantised weights explain those that are missing
    require_known_names(model, report["unexpected_keys"], stored, prefix=prefix)
    require_all_weights(model, absent)
    require_shapes(model, report["mismatched_keys"])


def base_of(folder: Path, *, with_code: bool = False) -> Path | None:
    """Return the folder of the model that an adapter changes, downloaded if necessary; None for
    anything else.
    """
    if not (folder / ADAPTER).is_file():
        return None
    adapter = json.loads((folder / ADAPTER).read_text(encoding="utf-8"))
    name = adapter.get("base_model_name_or_path") if isinstance(adapter, dict) else None
    if not isinstance(name, str) or not name:
        raise CheckpointError(
            f"it is an adapter ({ADAPTER}) that names no base model; merge the two and sweep that"
        )
    # an adapter that was trained on a local model names its folder
    if Path(name).is_dir():
        return Path(name)
    hub = Hub()
    try:
        validate_repo_id(name)  # the path of a folder that is gone is none
        return hub.keep(
            name, adapter.get("revision") or "main", partial(choose_files, with_code=with_code)
        )
    except NoConnectionError as error:
        raise NoConnectionError(
            hub.endpoint, f"needed for {name}, the base model of an adapter"
        ) from error
    except (CheckpointError, HFValidationError) as error:
        raise CheckpointError(
            f"it is an adapter of {name!r:.200}, which is no folder here and not on the hub: "
            f"{error}"
        ) from error


def _load_adapter(
    folder: Path, base: Path, loading: Loading, offload_folder: Path | None, *, with_head: bool
) -> nn.Module:
    """Load the model that an adapter changes, and merge the two."""
    try:
        from peft import PeftModel, get_peft_model_state_dict, load_peft_weights
    except ImportError as error:
        raise CheckpointError(
            f"it is an adapter ({ADAPTER}) of another model; pip install peft, or merge the two "
            "and sweep the result"
        ) from error
    saved = set(load_peft_weights(str(folder), device="cpu"))
    warn_of_other_weights(folder)
    expected: set[str] = set()
    for has_head in (True, False):  # by which the names differ
        model = load_model(base, loading, offload_folder, with_head=has_head)
        try:
            with warnings.catch_warnings(action="ignore"):  # of the weights that are compared below
                adapted = PeftModel.from_pretrained(
                    cast(PreTrainedModel, model), folder, torch_device=loading.device
                )
        except AttributeError:
            if has_head:
                raise
            break  # an adapter for generation takes no model without a head
        if adapted.active_peft_config.is_prompt_learning:
            raise CheckpointError(
                "it is a tuned prompt, which cannot be merged; measure the model with it by "
                "repdyn.measure(model, Probe.from_inputs(batches, positions=...))"
            )
        expected = set(get_peft_model_state_dict(adapted, save_embedding_layers=False))
        # all that the adapter has in this model was saved, and no matrix is left over
        if expected <= saved and not any("lora_" in name for name in saved - expected):
            merged = cast(Any, adapted).merge_and_unload()
            _require_finite(merged)
            return (merged if with_head or not has_head else merged.base_model).eval()
    raise CheckpointError(
        "the adapter's weights do not fit its base model, such as "
        f"{min(saved ^ expected, default='none')}; the model would be measured without them"
    )


def _from_pretrained(
    auto_class: Any, folder: Path, settings: dict[str, Any], attention: str | None
) -> tuple[Any, list[str], dict[str, Any]]:
    """Return a model, the names of its weights that the checkpoint lacks, and what else
    transformers reports.
    """
    settings = settings | place_of(folder)
    with_attention = settings
    if attention is not None:
        with_attention = settings | {"attn_implementation": attention}
    try:
        model, report = auto_class.from_pretrained(**with_attention)
    except (ImportError, ValueError) as error:
        if attention is None:
            raise
        log.warning(
            "The run was measured with the attention %r, which is not available here; its values "
            "may differ in the last digits: %s",
            attention,
            str(error).splitlines()[0],
        )
        model, report = auto_class.from_pretrained(**settings)
    return model, missing_weights(model, report["missing_keys"]), report


def load_lightning(path: Path, *, raw: bool = False, attention: str | None = None) -> nn.Module:
    """Load the model from a Lightning checkpoint of :class:`repdyn.models.LanguageModel`, without
    running pickles.

    With ``raw``, of a file with averaged weights, those of the optimizer are loaded in their place.
    ``attention`` names another implementation than the default.
    """
    with model_errors(
        f"it does not load as a checkpoint of repdyn.models.LanguageModel: mend it, {OF_ONES_OWN}"
    ):
        content = lightning_content(path)
        weights = content["current_model_state" if raw else "state_dict"]
        # mapped from the file so far: the model is what takes memory
        _require_free(sum(tensor.nbytes for tensor in weights.values()))
        # not load_from_checkpoint, with which the file chooses what is called with its
        # hyperparameters
        parameters = content["hyper_parameters"]
        module = LanguageModel(
            **{name: parameters[name] for name in _OWN_ARGUMENTS if name in parameters}
        )
        module.model.load_state_dict(_weights_of(module.model, weights))
        if attention is not None:
            module.model.set_attn_implementation(attention)
        return module.model


def _weights_of(model: nn.Module, stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return stored weights by the names of the model, without what wrappers put before or into
    them.
    """
    names = [*model.state_dict()]
    plain = {_WRAPPERS.sub("", name): tensor for name, tensor in stored.items()}
    prefix = _prefix_of(plain, names)
    # neither too few nor too many, nor two that became one name without their wrappers
    unused = sorted(plain.keys() - {prefix + name for name in names})
    if not plain.keys() >= {prefix + name for name in names} or unused or len(plain) < len(stored):
        begins = shorten_list([f"{begin}*" for begin in _beginnings(stored, names)]) or "none"
        others = f", and {len(unused)} others are: {shorten_list(unused)}" if unused else ""
        lacking = sorted({prefix + name for name in names} - plain.keys())
        raise CheckpointError(
            "expected the weights of one LanguageModel, each behind the same prefix, got "
            f"{begins}: {len(lacking)} of its {len(names)} weights are not there{others}; "
            f"mend them, {OF_ONES_OWN}"
        )
    return {name: plain[prefix + name] for name in names}


def _beginnings(stored: Iterable[str], names: Collection[str]) -> list[str]:
    """Return what stands before the names of a model, or the first part of a name that has none."""
    ends = {f".{name}" for name in names}
    beginnings: dict[str, None] = {}
    for name in stored:
        plain = _WRAPPERS.sub("", name)
        dots = (dot.start() for dot in re.finditer(r"\.", plain))
        end = next((dot for dot in dots if plain[dot:] in ends), plain.find("."))
        wrappers = _WRAPPERS.match(name)
        outermost = wrappers[0] if wrappers else ""
        beginnings[outermost + plain[: end + 1]] = None
    return list(beginnings)


def lightning_content(path: Path) -> dict[str, Any]:
    """Read a Lightning checkpoint: tensors and plain values, no pickled code."""
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def place_of(checkpoint: Path) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` for a folder or a GGUF file."""
    if checkpoint.suffix != GGUF:
        return {"pretrained_model_name_or_path": checkpoint}
    return {"pretrained_model_name_or_path": checkpoint.parent, "gguf_file": checkpoint.name}


def _class_with_head(config: PreTrainedConfig) -> Any:
    """Return the class that loads the head that the configuration names; None if it names none.

    That of a GGUF file names none, and has a head where transformers has a decoder of this kind.
    """
    if config.architectures is None and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    name = next(iter(config.architectures or ()), "")
    heads = {_CAUSAL_HEAD: AutoModelForCausalLM, _MASKED_HEAD: AutoModelForMaskedLM}
    return next(
        (auto_class for pattern, auto_class in heads.items() if pattern.fullmatch(name)), None
    )


def _class_without_head(config: PreTrainedConfig) -> Any:
    """Return the class that loads the model alone, or the encoder alone where the configuration
    names that.
    """
    name = next(iter(config.architectures or ()), "")
    is_encoder = _ENCODER_ALONE.fullmatch(name) and type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING
    return AutoModelForTextEncoding if is_encoder else AutoModel


def _check_no_remote_code(config: PreTrainedConfig) -> None:
    """Check the attention implementation: one with a slash is a repository of compiled code that
    would be run.
    """
    configs = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    for what in ("attn", "experts"):
        names = [str(getattr(of_part, f"_{what}_implementation", None)) for of_part in configs]
        elsewhere = [name for name in names if "/" in name]
        if elsewhere:
            raise CheckpointError(
                f"it requires code of another repository, {elsewhere[0]!r:.80}; read that, then "
                "allow it with trust_remote_code=True"
            )


def _weight_files(folder: Path) -> list[Path]:
    """Return the files of weights that are loaded from a folder, or the GGUF file itself."""
    if folder.suffix == GGUF:
        return [folder]
    # as on the hub, since the same files are loaded
    chosen = choose_files(files_in(folder))
    return [folder / name for name in chosen if is_weight_file(name)]


def _require_whole(path: Path) -> None:
    """Raise CheckpointError for a file of weights that was not saved or copied to its end, or whose
    place a pointer of git-lfs holds.
    """
    with path.open("rb") as file:
        beginning = file.read(len(_POINTER))
    if beginning == _POINTER:
        raise CheckpointError(
            f"expected weights in {path.name}, got a pointer of git-lfs to them; run git lfs pull "
            f"in {path.parent}"
        )
    cause = "" if beginning else "it is empty"
    if beginning and path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as error:
            cause = str(error)
    if cause:
        raise CheckpointError(
            f"expected a whole file of weights, got {path.name} of {path.stat().st_size:,} bytes: "
            f"{cause}; save, copy or download it again"
        )


def _require_free(n_bytes: float) -> None:
    available = psutil.virtual_memory().available  # Linux would kill the process otherwise
    if n_bytes > available:
        raise CheckpointError(
            f"out of memory: its weights take {n_bytes / 1e9:.1f} GB, and {available / 1e9:.1f} GB "
            'are free; try dtype="bfloat16" or device_map="auto"'
        )


def _renamings(unused: Iterable[str], missing: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the prefix of all names, without wrappers, and the renamings by which transformers
    finds the missing weights.
    """
    # what is missing under its own name is there under a longer one
    plain = {name: _WRAPPERS.sub("", name) for name in unused}
    n_wrapped = max((len(_WRAPPERS.findall(name)) for name in plain), default=0)
    prefix = _prefix_of(plain.values(), missing)
    # transformers renames one place of a name for each pattern, and takes a pattern once: an
    # empty group makes another one of it
    patterns = accumulate(repeat("(?:)", n_wrapped - 1), initial=_WRAPPERS.pattern)
    renamings = dict.fromkeys(patterns, "") if n_wrapped else {}
    if prefix:
        renamings[f"^{re.escape(prefix)}"] = ""
    return prefix, renamings


def _prefix_of(names: Collection[str], missing: Sequence[str]) -> str:
    """Return what torch.compile, DistributedDataParallel or a module around the model put before
    all names; or "".
    """
    if not missing:
        return ""
    first = missing[0]
    prefixes = [name.removesuffix(first) for name in names if name.endswith(f".{first}")]
    for prefix in prefixes:
        if set(names).issuperset(prefix + name for name in missing):
            return prefix
    return ""


def _require_finite(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        # of weights on "meta", which a device map reads from disk, nothing is known yet
        if parameter.device.type != "meta" and not bool(torch.isfinite(parameter).all()):
            raise CheckpointError(f"its weights are not finite: {name} holds NaN or infinity")
