"""Fixtures that many tests share. Nothing here touches a network."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# a shell ignores Ctrl-C in what it runs in the background, which processes that tests start would
# inherit
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")
# Models this small lose more to a second thread than they gain, and on a busy machine it costs them
# minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from small import HandWritten, random_tokens

from repdyn import Probe

pytest_plugins = [
    "run_fixtures",
    "probe_fixtures",
    "saved_models",
    "remote_fixtures",
    "pytester",
    # sweeps have later versions and environments of their own
    *(["hub_fixtures", "sweeping"] if find_spec("httpx2") else []),
]


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until everything is imported, since little of it is garbage


_SERVERS = {"hub", "s3_server", "datasets"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests of processes and servers once more if they fail: time limits are exceeded where a
    machine is busy.

    Those marked ``once`` are not: a loss or a difference in one of two attempts is one.
    """
    for item in items:
        has_limits = item.get_closest_marker("process") or _SERVERS & set(
            getattr(item, "fixturenames", ())
        )
        if has_limits and not item.get_closest_marker("once"):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_collection_finish() -> None:
    """What importing has made stays: looking it over again and again for garbage would take a
    quarter of the time.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _threads_stay():
    """UMAP sets them for the whole process, and the last bits of what is measured depend on
    them.
    """
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_wandb_run_is_left_open():
    """It would take in the rows of the next test."""
    yield
    wandb = sys.modules.get("wandb")
    if wandb is not None and wandb.run is not None:
        wandb.finish()


@pytest.fixture
def hand_written() -> HandWritten:
    torch.manual_seed(0)
    return HandWritten()


@pytest.fixture
def small_probe() -> Probe:
    """24 sequences of 12 tokens, two batches of 96 vectors."""
    return Probe.from_tokens(
        random_tokens(24, 12), special_ids=[7], max_vectors=192, batch_vectors=96
    )


@pytest.fixture
def without_figures(monkeypatch) -> None:
    """For tests that are not about them: drawing takes longer than everything else a short training
    does.
    """
    for view in ("repdyn.views.publish.results.show_run", "repdyn.views.report.write_report"):
        monkeypatch.setattr(view, lambda *_, **__: None)


def _write_texts(figure: Any, path: Any, **_: Any) -> None:
    from matplotlib.text import Text

    Path(path).write_text(
        "\n".join(filter(None, (text.get_text() for text in figure.findobj(Text)))) or "no text"
    )


@pytest.fixture(scope="module")
def quick_images() -> Iterator[None]:
    """Make figures as ever, but write their texts alone: for tests of which there are and what they
    say.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", _write_texts)
        yield
