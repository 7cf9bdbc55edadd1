"""Tokenizers of published and local models: which files make one up, fetching it, loading it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from repdyn.checkpoints.errors import CheckpointError, model_errors
from repdyn.checkpoints.hub import Files, Hub, total_bytes
from repdyn.checkpoints.weights import remote_code_errors, require_regular_files
from repdyn.utils.quiet import without_reports

_TOKENIZER_FILES = re.compile(
    r"tokenizer[^/]*|vocab\.[^/]*|merges\.txt|special_tokens_map\.json|added_tokens\.json|[^/]*\.model|config\.json"
)
_VOCABULARY_FILES = re.compile(r"tokenizer\.json|vocab\.[^/]*|[^/]*\.model")
_NO_LIMIT = 1 << 30


@dataclass(frozen=True)
class HubFolder:
    """A folder of one commit of a hub repository."""

    repository: str
    revision: str = "main"
    subfolder: str = ""

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision[:12]}{f'/{self.subfolder}' if self.subfolder else ''}"

    def files(self, hub: Hub) -> Files:
        """List the files in it and below, by their path in it."""
        files = hub.files(self.repository, self.revision)
        return {name.removeprefix(self._prefix): files[name] for name in files if name.startswith(self._prefix)}

    def fetch(self, files: Files, hub: Hub, folder: Path) -> Path:
        """Download some of its files and return the local folder that holds them.

        Raises:
            CheckpointError: they cannot be downloaded, or are larger than the budget of the hub.
        """
        total = total_bytes(files)
        if hub.budget_bytes is not None and total > hub.budget_bytes:
            raise CheckpointError(
                f"the tokenizer or configuration of {self} takes {total / 1e9:.3g} GB, more than the "
                f"{hub.budget_bytes / 1e9:.3g} GB of --max-disk"
            )
        named = {self._prefix + name: file for name, file in files.items()}
        hub.download(self.repository, self.revision, named, folder)
        return folder / self.subfolder

    @property
    def _prefix(self) -> str:
        return f"{self.subfolder}/" if self.subfolder else ""


def has_tokenizer(names: Iterable[str]) -> bool:
    """Return whether one of these files is a tokenizer's vocabulary."""
    return any(_VOCABULARY_FILES.fullmatch(name) for name in names)


def tokenizer_files(files: Files, *, with_code: bool) -> Files:
    """Select the files that a tokenizer needs; Python files only where their code may run."""
    return matching_files(files, _TOKENIZER_FILES, with_code)


def matching_files(files: Files, pattern: re.Pattern[str], with_code: bool) -> Files:
    """Select the files whose whole name matches a pattern, and with ``with_code`` the top-level Python files too."""
    return {
        name: file
        for name, file in files.items()
        if pattern.fullmatch(name) or (with_code and "/" not in name and name.endswith(".py"))
    }


def fetch_tokenizer(model: str, folders: Sequence[HubFolder], hub: Hub, destination: Path, with_code: bool) -> Path:
    """Download the tokenizer of the first folder that has one, and return the local folder that holds it.

    Raises:
        CheckpointError: none of the folders has a tokenizer.
    """
    tried = []
    for folder in folders:
        try:
            files = folder.files(hub)
            if has_tokenizer(files):
                return folder.fetch(tokenizer_files(files, with_code=with_code), hub, destination)
            tried.append(f"{folder} has none")
        except CheckpointError as error:  # many repositories of checkpoints have no main branch
            shutil.rmtree(destination, ignore_errors=True)  # takes space, and is not to be mixed with another's files
            tried.append(str(error))
    raise CheckpointError(
        f"expected a tokenizer for {model}, found none: {'; '.join(tried)}; name the repository that has it with "
        "--tokenizer, or in its suite under tokenizer"
    )


def load_tokenizer(folder: Path, model: str, *, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a local folder.

    Raises:
        CheckpointError: it does not load; the message names ``model``.
    """
    what = f"the tokenizer of {model}"
    with model_errors(f"{what} does not load"), remote_code_errors(what), without_reports():
        require_regular_files(folder)
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)


def context_length(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return how many tokens the model takes; 2**30 where neither configuration nor tokenizer sets a limit."""
    of_model = getattr(config.get_text_config(), "max_position_embeddings", None)
    limits: Sequence[int | None] = [of_model, tokenizer.model_max_length]
    # a tokenizer without a limit says 1e30
    return min([_NO_LIMIT, *(int(limit) for limit in limits if limit and limit > 0)])
