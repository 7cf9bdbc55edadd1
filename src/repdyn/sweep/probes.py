"""The probe of a published model: one text for all, cut by the model's own tokenizer."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from repdyn.data.source import load_corpus
from repdyn.probe import MAX_VECTORS, Probe
from repdyn.sweep.failures import CheckpointError, model_errors
from repdyn.sweep.hub import Hub, unwatched
from repdyn.sweep.suites import History
from repdyn.sweep.targets import Selection

SEQUENCE_LENGTH = 256
_TOKENIZER_FILES = re.compile(
    r"tokenizer.*|vocab\..*|merges\.txt|special_tokens_map\.json|added_tokens\.json|[^/]*\.model|config\.json"
)
_TOKENIZERS = re.compile(r"tokenizer\.json|tokenizer\.model|vocab\..*|spiece\.model|sentencepiece.*\.model")


@dataclass(frozen=True)
class ProbeText:
    """What probes are made of.

    Args:
        source: "enwik8" (its held-out last 5 %), "builtin", or the path of a text.
        sequence_length: tokens in a sequence; None for 256, or the model's context where that is shorter.
        max_vectors: vectors measured per layer.
    """

    source: str = "enwik8"
    sequence_length: int | None = None
    max_vectors: int = MAX_VECTORS

    def probe(self, folder: Path, *, trust_remote_code: bool = False) -> Probe:
        """The probe for the tokenizer and configuration in a folder.

        Raises:
            CheckpointError: the folder's tokenizer does not load.
            ValueError: the text is too short, or the sequences are longer than the model's context.
        """
        with model_errors(f"the tokenizer in {folder} does not load"):
            options = {"local_files_only": True, "trust_remote_code": trust_remote_code}
            tokenizer = AutoTokenizer.from_pretrained(folder, **options)
            context = _context(AutoConfig.from_pretrained(folder, **options), tokenizer)
        length = self.sequence_length or min(SEQUENCE_LENGTH, context)
        if length > context:
            raise ValueError(
                f"expected sequences no longer than the model's context of {context} tokens, got {length}; lower "
                "--sequence-length"
            )
        if self.source == "enwik8":
            return Probe.enwik8(tokenizer, sequence_length=length, max_vectors=self.max_vectors)
        corpus = load_corpus(self.source)
        return Probe.from_texts(
            [corpus.data.decode(errors="replace")],
            tokenizer,
            name=corpus.name,
            sequence_length=length,
            max_vectors=self.max_vectors,
        )


def hub_probe(
    history: History, selection: Selection, text: ProbeText, hub: Hub, *, trust_remote_code: bool = False
) -> Probe:
    """The probe of a published history, with the tokenizer it names, or else its repository's, or a checkpoint's.

    Raises:
        CheckpointError: none of these has a tokenizer.
    """
    with _tokenizer_folder(history, selection, hub) as folder:
        return text.probe(folder, trust_remote_code=trust_remote_code)


@contextmanager
def _tokenizer_folder(history: History, selection: Selection, hub: Hub) -> Iterator[Path]:
    places = [(repository, "main") for repository in (history.tokenizer, history.repository) if repository]
    places += [(target.repository, target.commit) for target in reversed(selection.targets) if target.commit]
    tried = []
    for repository, revision in dict.fromkeys(places):
        try:
            commit = hub.commit(repository, revision)
            there = hub.files(repository, commit)
        except CheckpointError as error:  # many repositories of checkpoints have no main branch
            tried.append(str(error))
            continue
        files = {name: file for name, file in there.items() if _TOKENIZER_FILES.fullmatch(name)}
        if any(_TOKENIZERS.fullmatch(name) for name in files):
            with tempfile.TemporaryDirectory(prefix="repdyn-tokenizer-") as folder:
                hub.download(repository, commit, files, Path(folder), unwatched())
                yield Path(folder)
                return
        tried.append(f"{repository}@{revision} has none")
    raise CheckpointError(
        f"expected a tokenizer for {history.name}, found none: {'; '.join(tried[:4])}; "
        "name the repository that has it as tokenizer: in the suite, or with --tokenizer"
    )


def _context(config: object, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens that fit into the model; where neither configuration nor tokenizer sets a limit, there is none."""
    limits: Sequence[int | None] = [getattr(config, "max_position_embeddings", None), tokenizer.model_max_length]
    return min((limit for limit in limits if limit and limit > 0), default=1 << 30)
