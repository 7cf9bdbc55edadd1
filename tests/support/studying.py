"""Studies run by their command, and small inputs of theirs."""

from __future__ import annotations

import pandas as pd

from repdyn.cli.main import main


def run_study(name: str, *arguments: object) -> None:
    """Run a study in this process."""
    main(["study", name, *map(str, arguments)])


def numbers(pairs: pd.DataFrame) -> list[tuple[int, int]]:
    return list(zip(pairs["first"], pairs["second"], strict=True))


PAIR = ("the cat sat", "the dog sat")


def told(capsys) -> str:
    return " ".join(capsys.readouterr().out.split())
