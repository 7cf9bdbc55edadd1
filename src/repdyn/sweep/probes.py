"""The probe of a model that was not measured live: one text for all models, cut by the model's own tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from repdyn.data.source import load_corpus
from repdyn.hub.client import Files, Hub, no_progress
from repdyn.hub.errors import CheckpointError, SweepStoppedError, model_errors
from repdyn.hub.weights import code_refused
from repdyn.probe import Probe
from repdyn.probe.design import INDEPENDENT, MAX_VECTORS, design_named
from repdyn.sweep.local import LIGHTNING, load_lightning
from repdyn.sweep.suites import History
from repdyn.sweep.targets import Selection, Target
from repdyn.utils.quiet import without_reports

TEXT = "enwik8"
_TOKENIZER_FILES = re.compile(
    r"tokenizer[^/]*|vocab\.[^/]*|merges\.txt|special_tokens_map\.json|added_tokens\.json|[^/]*\.model|config\.json"
)
_TOKENIZERS = re.compile(r"tokenizer\.json|vocab\.[^/]*|[^/]*\.model")
_CONFIG = re.compile(r"config\.json")
_NO_LIMIT = 1 << 30
_ASKED = 3
"""The newest so many checkpoints are asked for a tokenizer and a configuration: of hundreds, none may have one."""


@dataclass(frozen=True)
class ProbeText:
    """What probes are made of.

    Args:
        source: "enwik8" (its held-out last 5 %), "builtin", or the path of a text.
        sequence_length: tokens in a window; None for what the design says, or the model's context where it is shorter.
        max_vectors: vectors measured per layer.
        design: sampling design of the probe, one of :data:`repdyn.probe.design.DESIGNS`.
        classes: of words that the probe is to know, among :data:`repdyn.probe.word_classes.CLASSES`.
    """

    source: str = TEXT
    sequence_length: int | None = None
    max_vectors: int = MAX_VECTORS
    classes: Sequence[str] = ()
    design: str = INDEPENDENT.name

    def probe(self, name: str, tokenizer: Path, config: PreTrainedConfig, *, trust_remote_code: bool = False) -> Probe:
        """The probe of a model.

        Args:
            name: of the model, for messages.
            tokenizer: folder of its tokenizer.
            config: the model's own, which sets its context.
            trust_remote_code: run Python code of the tokenizer's folder.

        Raises:
            CheckpointError: the tokenizer does not load.
            ValueError: the text is too short, or the sequences are longer than the model's context; or classes of words
                cannot be told.
            SweepStoppedError: the text cannot be downloaded.
        """
        with model_errors(f"the tokenizer of {name} does not load"), without_reports():
            loaded = AutoTokenizer.from_pretrained(
                tokenizer, local_files_only=True, trust_remote_code=trust_remote_code
            )
            context = context_of(config, loaded)
        length = self.sequence_length or min(design_named(self.design).window_tokens or context, context)
        if length > context:
            raise ValueError(
                f"expected sequences no longer than the context of {name}, {context} tokens, got {length}; lower "
                "--sequence-length"
            )
        settings: dict[str, Any] = {
            "sequence_length": length,
            "max_vectors": self.max_vectors,
            "classes": self.classes,
            "design": self.design,
        }
        try:
            if self.source == "enwik8":
                return Probe.enwik8(loaded, **settings)
            corpus = load_corpus(self.source)
            return Probe.from_texts([corpus.data.decode(errors="replace")], loaded, name=corpus.name, **settings)
        except ConnectionError as error:
            raise SweepStoppedError(str(error)) from error


def hub_probe(
    history: History,
    selection: Selection,
    text: ProbeText,
    hub: Hub,
    *,
    tokenizer: Path | None = None,
    trust_remote_code: bool = False,
) -> Probe:
    """The probe of a published history.

    Args:
        history: its tokenizer is taken where it names one; else that of the repository's main branch, or else that of
            one of the newest checkpoints.
        selection: the checkpoints; the newest that has a configuration tells the model's context.
        text: what to make it of.
        hub: where they are.
        tokenizer: a local folder that has the tokenizer.
        trust_remote_code: run Python code of the repository.

    Raises:
        CheckpointError: there is no tokenizer, no configuration, or no checkpoint at all.
        ValueError, SweepStoppedError: as :meth:`ProbeText.probe`.
    """
    newest = [target for target in reversed(selection.targets) if target.commit][:_ASKED]
    if not newest:
        reasons = [str(target.missing) for target in selection.targets[:_ASKED]]
        raise CheckpointError(f"none of its checkpoints is there: {'; '.join(reasons)}")
    with TemporaryDirectory(prefix="repdyn-probe-") as temporary:
        config = _hub_config(newest, hub, Path(temporary) / "config", trust_remote_code)
        if tokenizer is None:
            places = _tokenizer_places(history, newest)
            tokenizer = _fetch_tokenizer(history.name, places, hub, Path(temporary) / "tokenizer", trust_remote_code)
        return text.probe(history.name, tokenizer, config, trust_remote_code=trust_remote_code)


def local_probe(
    folder: Path,
    targets: Sequence[Target],
    text: ProbeText,
    hub: Hub,
    *,
    tokenizer: str | None = None,
    trust_remote_code: bool = False,
) -> Probe:
    """The probe of local checkpoints.

    Args:
        folder: where they lie, for messages.
        targets: the checkpoints; the newest tells the model's context.
        text: what to make it of.
        hub: where a tokenizer is fetched that is no folder here.
        tokenizer: folder or hub repository; by default the newest checkpoint that has a tokenizer beside its weights.
        trust_remote_code: run Python code of the folder.

    Raises:
        CheckpointError: the newest checkpoint has no configuration that can be read, or the hub not the tokenizer.
        ValueError: there is no tokenizer.
        ValueError, SweepStoppedError: as :meth:`ProbeText.probe`.
    """
    paths = [target.path for target in reversed(targets) if target.path is not None]
    with TemporaryDirectory(prefix="repdyn-probe-") as temporary:
        if tokenizer is None:
            found = next((path for path in paths if _has_tokenizer(path)), None)
        elif Path(tokenizer).is_dir():
            found = Path(tokenizer)
        else:
            found = _fetch_tokenizer(str(folder), [_Place(tokenizer)], hub, Path(temporary), trust_remote_code)
        if found is None:
            raise ValueError(
                f"expected a probe, but {folder} is no run's folder, and its checkpoints have no tokenizer to make one "
                "with; name a probe with --probe FILE, or a folder or hub repository with --tokenizer"
            )
        config = _local_config(paths[0], trust_remote_code)
        return text.probe(str(folder), found, config, trust_remote_code=trust_remote_code)


def holds_tokenizer(names: Iterable[str]) -> bool:
    """Whether one of these files is a tokenizer."""
    return any(_TOKENIZERS.fullmatch(name) for name in names)


def tokenizer_files(files: Files, *, with_code: bool) -> Files:
    """What a tokenizer needs of these files; Python code only where it may run."""
    return _only(files, _TOKENIZER_FILES, with_code)


def context_of(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens that fit into the model; 2**30 where neither configuration nor tokenizer sets a limit."""
    of_model = getattr(config.get_text_config(), "max_position_embeddings", None)
    limits: Sequence[int | None] = [of_model, tokenizer.model_max_length]
    # a tokenizer without a limit says 1e30
    return min([_NO_LIMIT, *(int(limit) for limit in limits if limit and limit > 0)])


def _has_tokenizer(folder: Path) -> bool:
    return folder.is_dir() and holds_tokenizer(path.name for path in folder.iterdir())


@dataclass(frozen=True)
class _Place:
    """A folder of a commit on the hub."""

    repository: str
    revision: str = "main"
    subfolder: str = ""

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision[:12]}{f'/{self.subfolder}' if self.subfolder else ''}"

    def files(self, hub: Hub) -> Files:
        """Those right in it or below, by their path in it."""
        files = hub.files(self.repository, self.revision)
        return {name.removeprefix(self._prefix): files[name] for name in files if name.startswith(self._prefix)}

    def fetch(self, files: Files, hub: Hub, folder: Path) -> Path:
        """Fetch some of its files; returns where they lie."""
        named = {self._prefix + name: file for name, file in files.items()}
        hub.download(self.repository, self.revision, named, folder, no_progress())
        return folder / self.subfolder

    @property
    def _prefix(self) -> str:
        return f"{self.subfolder}/" if self.subfolder else ""


def _tokenizer_places(history: History, newest: Sequence[Target]) -> list[_Place]:
    """Where the tokenizer may be; where the history names one, nowhere else."""
    if history.tokenizer:
        return [_Place(history.tokenizer)]
    own = [_Place(history.repository)] if history.repository else []
    beside = [_Place(at.repository, at.commit, at.subfolder) for at in newest]
    above = [_Place(at.repository, at.commit) for at in newest]
    return list(dict.fromkeys([*own, *beside, *above]))


def _fetch_tokenizer(model: str, places: Sequence[_Place], hub: Hub, folder: Path, with_code: bool) -> Path:
    """Fetch the first tokenizer there is; returns where it lies."""
    tried = []
    for place in places:
        try:
            files = place.files(hub)
            if holds_tokenizer(files):
                return place.fetch(tokenizer_files(files, with_code=with_code), hub, folder)
            tried.append(f"{place} has none")
        except CheckpointError as error:  # many repositories of checkpoints have no main branch
            tried.append(str(error))
    raise CheckpointError(
        f"expected a tokenizer for {model}, found none: {'; '.join(tried)}; name the repository that has it with "
        "--tokenizer, or in its suite under tokenizer"
    )


def _hub_config(newest: Sequence[Target], hub: Hub, folder: Path, with_code: bool) -> PreTrainedConfig:
    tried = []
    for target in newest:
        place = _Place(target.repository, target.commit, target.subfolder)
        try:
            files = _only(place.files(hub), _CONFIG, with_code)
            return _config(place.fetch(files, hub, folder / target.commit), with_code)
        except CheckpointError as error:
            tried.append(f"{target.revision}: {error}")
    raise CheckpointError(f"expected a checkpoint with a configuration that loads, found none: {'; '.join(tried)}")


def _local_config(path: Path, with_code: bool) -> PreTrainedConfig:
    return cast(PreTrainedModel, load_lightning(path)).config if path.suffix == LIGHTNING else _config(path, with_code)


def _config(folder: Path, with_code: bool) -> PreTrainedConfig:
    with model_errors("its configuration does not load"), code_refused(), without_reports():
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=with_code)


def _only(files: Files, wanted: re.Pattern[str], with_code: bool) -> Files:
    return {name: file for name, file in files.items() if wanted.fullmatch(name) or (with_code and _is_code(name))}


def _is_code(name: str) -> bool:
    return "/" not in name and name.endswith(".py")
