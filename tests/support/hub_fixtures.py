"""Fixtures of the sweep's tests: a hub on this machine, and a family of checkpoints to put
there.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from hub_server import HubServer
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from repdyn.checkpoints.hub import ASKING, DOWNLOADING, PREFETCHING
from repdyn.data.tokens import byte_tokenizer
from repdyn.models import build_model

SIZES = {"vocab_size": 260, "hidden_size": 16, "n_layers": 2, "n_heads": 2, "context_length": 12}
_CHECKPOINTS = tempfile.TemporaryDirectory(prefix="checkpoints-of-tests-")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the client library would have waited before it asked again, one for each time;
    it waits none.
    """
    waited: list[float] = []
    for module in ("huggingface_hub.utils._http", "huggingface_hub.file_download"):
        monkeypatch.setattr(
            f"{module}.time", SimpleNamespace(**vars(time) | {"sleep": waited.append})
        )
    return waited


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]) -> Iterator[HubServer]:
    """A running hub, which the client library takes for the real one, also where no endpoint is
    named.

    The library's cache is below ``tmp_path``, no token is sent unless one is named, and files
    arrive in pieces of 4096 bytes, so that small ones are resumed as large ones are.
    """
    with HubServer() as server:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 4096)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub_cache"))
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", server.url)
        # it asks the hub for a list of programs that may be running this process
        monkeypatch.setattr("huggingface_hub.utils._headers.detect_agent", lambda: None)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr("repdyn.checkpoints.hub._WAITS_SECONDS", (0, 0, 0))
        monkeypatch.setattr("repdyn.checkpoints.hub._LONGEST_WAIT_SECONDS", 3)
        # a client made earlier would keep its proxies and connections
        huggingface_hub.close_session()
        yield server
    for thread in threading.enumerate():
        # a request that was given up would close the next test's connections
        if thread.name.startswith((PREFETCHING, DOWNLOADING, ASKING)):
            thread.join(60)
    huggingface_hub.close_session()


@pytest.fixture(name="save_family")
def save_family_function() -> Callable[[Path, Iterable[int]], dict[int, Path]]:
    return save_family


@pytest.fixture
def family(tmp_path: Path) -> dict[int, Path]:
    """Checkpoints at the steps 0, 8 and 16, by step."""
    return save_family(tmp_path / "family", (0, 8, 16))


def save_family(folder: Path, steps: Iterable[int]) -> dict[int, Path]:
    """Save an untrained GPT-NeoX with a byte tokenizer for each step, other weights each time, as
    FOLDER/stepN.

    Returns:
        The folder of each step.
    """
    folders = {step: folder / f"step{step}" for step in steps}
    for step, path in folders.items():
        shutil.copytree(_saved_checkpoint(step), path)
    return folders


def save_again(folder: Path, copy: Path) -> Path:
    """Copy a checkpoint whose file of weights has the same values, but other metadata and so
    another checksum.
    """
    shutil.copytree(folder, copy)
    path = copy / "model.safetensors"
    save_file(load_file(path), path, metadata={"format": "pt", "saved": "again"})
    return copy


@cache
def _saved_checkpoint(step: int) -> Path:
    """Save a checkpoint once for all tests, which copy it."""
    path = Path(_CHECKPOINTS.name) / f"step{step}"
    with torch.random.fork_rng():
        torch.manual_seed(step)
        build_model("gpt_neox", **SIZES).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path
