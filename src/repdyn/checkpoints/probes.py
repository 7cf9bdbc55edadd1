"""The probe of published or local checkpoints: the same text for all models, with the tokenizer of
each.

:func:`hub_probe` and :func:`local_probe` find the tokenizer and the configuration, which tells the
context; :func:`text_probe` makes the probe; :func:`probe_of_all` refuses a run whose checkpoints
have tokenizers that read the text differently.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from repdyn.checkpoints.completion import live_run
from repdyn.checkpoints.errors import CheckpointError, SweepStoppedError, model_errors
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.local import LIGHTNING, is_model
from repdyn.checkpoints.options import SweepOptions
from repdyn.checkpoints.suites import PublishedModel
from repdyn.checkpoints.targets import Selection, Target
from repdyn.checkpoints.weight_files import GGUF, Files
from repdyn.checkpoints.weights import base_of, load_lightning, place_of
from repdyn.probe import Probe
from repdyn.probe.corpus import DEFAULT_TEXT, load_corpus
from repdyn.probe.design import INDEPENDENT, MAX_VECTORS, class_names, resolve_design
from repdyn.utils.printing import shorten_list, without_reports

T = TypeVar("T")

_TOKENIZER_FILES = re.compile(
    r"tokenizer[^/]*|vocab\.[^/]*|merges\.txt|special_tokens_map\.json|added_tokens\.json"
    r"|[^/]*\.model|config\.json"
)
_VOCABULARY_FILES = re.compile(r"tokenizer\.json|vocab\.[^/]*|[^/]*\.model")
_NO_LIMIT = 1 << 30
_CONFIG = re.compile(r"(adapter_)?config\.json")
NUMBERED_AFTER_PADDING = frozenset(
    {
        "camembert",
        "data2vec-text",
        "esm",
        "ibert",
        "layoutlmv3",
        "lilt",
        "longformer",
        "luke",
        "markuplm",
        "mpnet",
        "prophetnet",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)
"""Types of models whose positions begin behind that of the padding, as RoBERTa's: so many of the
rows of their position embeddings are no token's."""
_MAX_TRIED = 3
"""Number of newest checkpoints in which a tokenizer and a configuration are searched."""


def hub_probe(selection: Selection, options: SweepOptions, hub: Hub) -> Probe:
    """Return the probe of published checkpoints, of which the newest with a configuration
    determines the context.

    The tokenizer is the one the options or the suite name; otherwise that of the repository's main
    branch, or that of one of the newest checkpoints. Checkpoints that have tokenizers of their own
    must read the text alike, by them; if the main branch alone differs, theirs is used.
    """
    model = cast(PublishedModel, selection.model)
    with_code = options.trust_remote_code
    existing = [target for target in reversed(selection.targets) if target.commit]
    newest = existing[:_MAX_TRIED]
    if not newest:
        reasons = [str(target.missing_reason) for target in selection.targets[:_MAX_TRIED]]
        raise CheckpointError(f"none of its checkpoints exists: {'; '.join(reasons)}")
    config = _load_first(
        newest,
        hub,
        choose=partial(_matching_files, pattern=_CONFIG, with_code=with_code),
        load=partial(_config, with_code=with_code),
    )
    main = [_main_of(model.repository)] if model.repository else []
    tokenizer = _tokenizer(model.name, model.tokenizer, [*main, *newest], hub, with_code)
    probe = text_probe(model.name, tokenizer, config, options)
    if model.tokenizer:
        return probe
    groups = [
        TokenizerGroup(
            tuple(target.revision for target in targets),
            partial(_tokenizer, model.name, None, targets[:1], hub, with_code),
        )
        for targets in _by_tokenizer(selection.targets, hub)
    ]
    return probe_of_all(model.name, probe, groups, config, options)


def local_probe(folder: Path, targets: Sequence[Target], options: SweepOptions, hub: Hub) -> Probe:
    """Return the probe of the checkpoints in a folder, of which the newest determines the context.

    The tokenizer is the one the options name, or that of the newest checkpoint with one.
    """
    existing = [target.path for target in reversed(targets) if target.path is not None]
    # others were not saved to their end
    complete = [path for path in existing if path.is_file() or is_model(path)]
    paths = complete or existing
    newest = paths[0]
    with_code = options.trust_remote_code
    with model_errors("its configuration does not load"):
        base = base_of(newest, with_code=with_code) or newest
    config = _local_config(newest, options)
    if options.tokenizer is not None:
        tokenizer = _tokenizer(str(folder), options.tokenizer, (), hub, with_code)
        return text_probe(str(folder), tokenizer, config, options)
    tokenizer = next((path for path in (*paths, base) if holds_tokenizer(path)), None)
    if tokenizer is None:
        raise ValueError(
            "expected a probe or a tokenizer to make one, got neither with the checkpoints in "
            f"{folder}; give a probe with probe=, or a folder or hub repository with "
            f"tokenizer={_or_that_of_the_run(options)}"
        )
    probe = text_probe(str(folder), tokenizer, config, options)
    by_digest: dict[str, list[Path]] = {}
    for path in paths:
        if path.is_dir() and holds_tokenizer(path):
            by_digest.setdefault(_digest_of_tokenizer(path), []).append(path)
    groups = [
        TokenizerGroup(tuple(path.name for path in group), partial(Path, group[0]))
        for group in by_digest.values()
    ]
    return probe_of_all(str(folder), probe, groups, config, options)


def _or_that_of_the_run(options: SweepOptions) -> str:
    """Return how to measure on the probe of the training that saved the checkpoints; nothing where
    it left none.
    """
    store = live_run(options)
    if store is None or not any((store.path / "probes").glob("*.safetensors")):
        return ""
    return ", or omit text= and the like to measure on the probe of this run"


def _local_config(path: Path, options: SweepOptions) -> PreTrainedConfig:
    """Return the configuration that determines the context; one without a limit where a function of
    the user's loads the model.
    """
    # nothing is known of a class of the user's own
    if options.load is not None:
        return PreTrainedConfig()
    if path.suffix == LIGHTNING:
        # names the way for a class of one's own
        return cast(PreTrainedModel, load_lightning(path)).config
    return _config(path, options.trust_remote_code)


@dataclass(frozen=True)
class TokenizerGroup:
    """Checkpoints with the same tokenizer files."""

    revisions: tuple[str, ...]
    fetch: Callable[[], Path]
    """Returns the folder of the tokenizer, downloaded if necessary."""


def probe_of_all(
    name: str,
    probe: Probe,
    groups: Sequence[TokenizerGroup],
    config: PreTrainedConfig,
    options: SweepOptions,
) -> Probe:
    """Return the probe that all checkpoints read by their own tokenizers.

    Args:
        name: the model, for messages.
        probe: that of the tokenizer that was chosen for all.
        groups: the checkpoints with tokenizers of their own; one that does not load is passed over.
        config: determines the context of the sequences.
        options: those by which the probe was made.

    Raises:
        CheckpointError: two tokenizers give other tokens, so that one of them would read what its
            model never saw.
    """
    # in sequences of one length: tokenizers differ in the limit that they name
    length = int(probe.lengths.max())
    readings: list[tuple[Probe, list[str]]] = []
    for group in groups:
        try:
            folder = group.fetch()
            reading = text_probe(name, folder, config, replace(options, sequence_length=length))
        except (CheckpointError, ValueError):
            continue
        alike = [names for other, names in readings if _have_equal_tokens(reading, other)]
        if alike:
            alike[0].extend(group.revisions)
        else:
            readings.append((reading, [*group.revisions]))
    if len(readings) > 1:
        (_, first), (_, second), *_ = readings
        raise CheckpointError(
            f"expected one tokenizer for all checkpoints of {name}, got {len(readings)} that give "
            f"other tokens, that of {shorten_list(first)} and that of {shorten_list(second)}; "
            "sweep them apart with revisions= and name=, or name one for all with tokenizer="
        )
    if not readings or _have_equal_tokens(readings[0][0], probe):
        return probe
    return readings[0][0]


def _have_equal_tokens(first: Probe, second: Probe) -> bool:
    """Return whether two probes have equal tokens, of which the same ones are special."""
    if not (
        torch.equal(first.lengths, second.lengths) and torch.equal(first.tokens, second.tokens)
    ):
        return False
    # special tokens that the text does not have make no difference
    ids = set(first.tokens.unique().tolist())
    return ids & set(first.special_ids) == ids & set(second.special_ids)


def _by_tokenizer(targets: Sequence[Target], hub: Hub) -> list[list[Target]]:
    """Group checkpoints, the newest first, by the digests of their tokenizer's files, without those
    that have none.
    """
    groups: dict[frozenset[tuple[str, str]], list[Target]] = {}
    for target in reversed(targets):
        if not target.commit:
            continue
        try:
            files = target.remote_files(hub, partial(tokenizer_files, with_code=False))
        except CheckpointError:
            continue  # measuring it says why
        if _has_vocabulary(files):
            digests = frozenset(
                (name, file.digest) for name, file in files.items() if not _CONFIG.fullmatch(name)
            )
            groups.setdefault(digests, []).append(target)
    return list(groups.values())


def _digest_of_tokenizer(folder: Path) -> str:
    # without config.json, which may differ where the vocabulary does not
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if _TOKENIZER_FILES.fullmatch(path.name) and not _CONFIG.fullmatch(path.name):
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def text_probe(
    name: str, tokenizer: Path, config: PreTrainedConfig, options: SweepOptions
) -> Probe:
    """Return the probe of the options' text for a model of this name, with the tokenizer in a
    folder.
    """
    loaded = load_tokenizer(tokenizer, name, trust_remote_code=options.trust_remote_code)
    with model_errors(f"the tokenizer of {name} does not load"):
        context = context_length(config, loaded)
    design = options.design or INDEPENDENT.name
    # a model with a shorter context than the design's windows is measured on shorter ones
    length = options.sequence_length or min(
        resolve_design(design).window_tokens or context, context
    )
    if length > context:
        raise ValueError(
            f"expected sequences no longer than the context of {name}, {context} tokens, got "
            f"{length}; lower sequence_length="
        )
    settings: dict[str, Any] = {
        "sequence_length": length,
        "classes": class_names(options.classes),
        "design": design,
        "max_vectors": options.max_vectors or MAX_VECTORS,
        "batch_vectors": options.batch_vectors,
    }
    text = options.text or DEFAULT_TEXT
    try:
        if text == "enwik8":
            return Probe.enwik8(loaded, **settings)
        corpus = load_corpus(text, encoding=options.encoding)
        return Probe.from_texts([corpus.text], loaded, name=corpus.name, **settings)
    except ConnectionError as error:
        raise SweepStoppedError(str(error)) from error


def holds_tokenizer(folder: Path) -> bool:
    """Return whether a folder has a tokenizer's vocabulary, or is a GGUF file, which has one."""
    return folder.suffix == GGUF or (
        folder.is_dir() and _has_vocabulary(path.name for path in folder.iterdir())
    )


def _main_of(repository: str) -> Target:
    return Target(run="", step=0, revision="main", repository=repository, commit="main")


def _config(folder: Path, with_code: bool) -> PreTrainedConfig:
    with model_errors("its configuration does not load"), without_reports():
        folder = base_of(folder, with_code=with_code) or folder
        return AutoConfig.from_pretrained(
            **place_of(folder), local_files_only=True, trust_remote_code=with_code
        )


def _load_first(
    targets: Iterable[Target],
    hub: Hub,
    *,
    choose: Callable[[Files], Files],
    load: Callable[[Path], T],
) -> T:
    """Return what loads from the chosen files of the first checkpoint that has any.

    Raises:
        CheckpointError: none has any; it says why for each.
    """
    reasons = []
    for target in targets:
        try:
            files = target.remote_files(hub, choose)
            if files:
                folder = hub.keep(target.repository, target.commit, lambda _, files=files: files)
                return load(folder)
            reasons.append(f"{target.origin} has none")
        except CheckpointError as error:  # many repositories of checkpoints have no main branch
            reasons.append(f"{target.origin}: {error}")
    raise CheckpointError("; ".join(reasons))


def _has_vocabulary(names: Iterable[str]) -> bool:
    return any(_VOCABULARY_FILES.fullmatch(name) for name in names)


def tokenizer_files(files: Files, *, with_code: bool) -> Files:
    """Select the files that a tokenizer needs; Python files only where their code may run."""
    return _matching_files(files, _TOKENIZER_FILES, with_code)


def _matching_files(files: Files, pattern: re.Pattern[str], with_code: bool) -> Files:
    names = [name for name in files if pattern.fullmatch(name)]
    # of the top folder alone, where transformers looks for it
    code = [name for name in files if with_code and "/" not in name and name.endswith(".py")]
    return {name: files[name] for name in [*names, *code]}


def _tokenizer(
    model: str, name: str | None, targets: Sequence[Target], hub: Hub, with_code: bool
) -> Path:
    """Return the folder of the named tokenizer, or else of that of the first checkpoint that has
    one, downloaded if necessary.
    """
    if name and Path(name).is_dir():
        return Path(name)

    def choose(files: Files) -> Files:
        return tokenizer_files(files, with_code=with_code) if _has_vocabulary(files) else {}

    try:
        searched = [_main_of(name)] if name else targets
        return _load_first(searched, hub, choose=choose, load=lambda folder: folder)
    except CheckpointError as error:
        raise CheckpointError(
            f"expected a tokenizer for {model}, found none: {error}; name the repository that has "
            "it with tokenizer=, or in its suite under tokenizer"
        ) from error


def load_tokenizer(folder: Path, model: str, *, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a local folder or GGUF file; a CheckpointError names ``model``."""
    with model_errors(f"the tokenizer of {model} does not load"), without_reports():
        return AutoTokenizer.from_pretrained(
            **place_of(folder), local_files_only=True, trust_remote_code=trust_remote_code
        )


def context_length(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return how many tokens the model takes; 2**30 where neither configuration nor tokenizer sets
    a limit.
    """
    # of a model of images and text, the part that reads text
    of_text = config.get_text_config()
    of_model = getattr(of_text, "max_position_embeddings", None)
    is_learned = getattr(of_text, "position_embedding_type", "absolute") == "absolute"
    if of_model and is_learned and of_text.model_type in NUMBERED_AFTER_PADDING:
        of_model -= 1 + (getattr(of_text, "pad_token_id", None) or 0)
    limits: Sequence[int | None] = [of_model, tokenizer.model_max_length]
    # a tokenizer without a limit says 1e30
    return min([_NO_LIMIT, *(int(limit) for limit in limits if limit and limit > 0)])
