"""The command that reproduces a recipe, in an empty folder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from repdyn.cli.main import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path, monkeypatch, capsys) -> Command:
    """Return a function that runs the command in an empty folder and returns its exit status,
    output and errors.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    # or it would end this process rather than wait for a download that it has given up
    monkeypatch.setattr("repdyn.checkpoints.hub.has_abandoned_threads", lambda: False)

    def command(*arguments: object) -> tuple[int, str, str]:
        status = 0
        try:
            main(["reproduce", *map(str, arguments)])
        except SystemExit as stop:
            status = int(stop.code or 0)
        return status, *capsys.readouterr()

    return command
