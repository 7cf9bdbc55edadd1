"""The probe of a model that was not measured live: one text for all models, cut by the model's own tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from repdyn.hub.client import Hub
from repdyn.hub.errors import CheckpointError, SweepStoppedError, model_errors
from repdyn.hub.local import LIGHTNING, load_lightning
from repdyn.hub.tokenizers import (
    HubFolder,
    context_length,
    fetch_tokenizer,
    has_tokenizer,
    load_tokenizer,
    matching_files,
)
from repdyn.hub.weights import remote_code_errors
from repdyn.probe import Probe
from repdyn.probe.design import INDEPENDENT, MAX_VECTORS, resolve_design
from repdyn.sweep.suites import PublishedModel
from repdyn.sweep.targets import Selection, Target
from repdyn.text.source import DEFAULT_TEXT, load_corpus
from repdyn.utils.quiet import without_reports

_CONFIG = re.compile(r"config\.json")
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

    source: str = DEFAULT_TEXT
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
        loaded = load_tokenizer(tokenizer, name, trust_remote_code=trust_remote_code)
        with model_errors(f"the tokenizer of {name} does not load"):
            context = context_length(config, loaded)
        length = self.sequence_length or min(resolve_design(self.design).window_tokens or context, context)
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
    model: PublishedModel,
    selection: Selection,
    text: ProbeText,
    hub: Hub,
    *,
    tokenizer: Path | None = None,
    trust_remote_code: bool = False,
) -> Probe:
    """The probe of a published history.

    Args:
        model: its tokenizer is taken where it names one; else that of the repository's main branch, or else that of
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
            places = _tokenizer_places(model, newest)
            tokenizer = fetch_tokenizer(model.name, places, hub, Path(temporary) / "tokenizer", trust_remote_code)
        return text.probe(model.name, tokenizer, config, trust_remote_code=trust_remote_code)


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
            found = fetch_tokenizer(str(folder), [HubFolder(tokenizer)], hub, Path(temporary), trust_remote_code)
        if found is None:
            raise ValueError(
                f"expected a probe, but {folder} is no run's folder, and its checkpoints have no tokenizer to make one "
                "with; name a probe with --probe FILE, or a folder or hub repository with --tokenizer"
            )
        config = _local_config(paths[0], trust_remote_code)
        return text.probe(str(folder), found, config, trust_remote_code=trust_remote_code)


def _has_tokenizer(folder: Path) -> bool:
    return folder.is_dir() and has_tokenizer(path.name for path in folder.iterdir())


def _tokenizer_places(model: PublishedModel, newest: Sequence[Target]) -> list[HubFolder]:
    """Return the places to look for the tokenizer; only the one that the suite names, if it names one."""
    if model.tokenizer:
        return [HubFolder(model.tokenizer)]
    own = [HubFolder(model.repository)] if model.repository else []
    beside = [HubFolder(at.repository, at.commit, at.subfolder) for at in newest]
    above = [HubFolder(at.repository, at.commit) for at in newest]
    return list(dict.fromkeys([*own, *beside, *above]))


def _hub_config(newest: Sequence[Target], hub: Hub, folder: Path, with_code: bool) -> PreTrainedConfig:
    tried = []
    for target in newest:
        place = HubFolder(target.repository, target.commit, target.subfolder)
        try:
            files = matching_files(place.files(hub), _CONFIG, with_code)
            return _config(place.fetch(files, hub, folder / target.commit), with_code)
        except CheckpointError as error:
            tried.append(f"{target.revision}: {error}")
    raise CheckpointError(f"expected a checkpoint with a configuration that loads, found none: {'; '.join(tried)}")


def _local_config(path: Path, with_code: bool) -> PreTrainedConfig:
    return cast(PreTrainedModel, load_lightning(path)).config if path.suffix == LIGHTNING else _config(path, with_code)


def _config(folder: Path, with_code: bool) -> PreTrainedConfig:
    with model_errors("its configuration does not load"), remote_code_errors(), without_reports():
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=with_code)
