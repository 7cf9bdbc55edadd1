"""The command of each figure of The Shape of Learning, as docs/reproduce.md has it, on stand-ins of
its families.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from handed_in import faults
from models_of_the_paper import FINISHED, HISTORIES
from models_of_the_paper import published as published

from repdyn import open_store
from repdyn.cli.main import main

PAGE = Path(__file__).parents[4] / "docs" / "reproduce.md"
STORE = "docs/public_models/rows"
COMMANDS = re.findall(
    r"^    repdyn (sweep --suite .*?) +# figure \d", PAGE.read_text(), re.MULTILINE
)


def test_one_command_each(published, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("repdyn.checkpoints.hub.has_abandoned_threads", lambda: False)
    quick = [
        "--text",
        "builtin",
        "--sequence-length",
        "16",
        "--max-vectors",
        "256",
        "--device",
        "cpu",
    ]
    for number, command in enumerate(COMMANDS, start=1):
        arguments = [*command.split(), *quick, "--downloads", str(tmp_path / "downloads")]
        capsys.readouterr()
        main([*arguments, "--dry-run", "--json"])
        plans = json.loads(capsys.readouterr().out)
        # figures 3 and 4 are of what figure 2 has measured
        assert all(bool(plan["download_bytes"]) == (number < 3) for plan in plans)
        main(arguments)
    rows = open_store(STORE).to_pandas().dropna(subset=["layer"])
    runs = rows.groupby("run", observed=True).agg(
        {"causal": "first", "layer": "nunique", "step": "nunique"}
    )
    measured = {
        str(run): (bool(causal), layers, steps) for run, causal, layers, steps in runs.itertuples()
    }
    expected = {repository: ("bert" not in family, 6, 1) for family, repository in FINISHED.items()}
    assert measured == expected | {
        name: (True, 6, len(steps)) for name, _, steps in HISTORIES.values()
    }
    drawn = {
        path.relative_to(Path(STORE) / "figures").as_posix() for path in Path(STORE).rglob("*.png")
    }
    profiles = {
        f"{name.replace('/', '_')}/profile_anisotropy.png" for name, *_ in HISTORIES.values()
    }
    assert {
        "comparison/profiles_anisotropy.png",
        "comparison/means_over_layers.png",
    } | profiles <= drawn
    assert faults(Path(STORE)) == []
