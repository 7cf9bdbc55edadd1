"""The list of suites that --list-suites prints."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from repdyn.sweep.suites import Suite, shipped_suites
from repdyn.utils.names import shorten_list


def suite_fields() -> list[dict[str, Any]]:
    """Return the suites that come with the package, as values of JSON."""
    return [
        {
            "name": suite.name,
            "title": suite.title,
            "models": [model.name for model in suite.models],
            "checked_against": {model.name: model.checked_against or suite.card for model in suite.models},
            "unverified": {model.name: model.unverified for model in suite.models if model.unverified},
        }
        for suite in shipped_suites().values()
    ]


def print_suites(console: Console) -> None:
    """Print the suites that come with the package, and their models."""
    for suite in shipped_suites().values():
        console.print(f"[bold]{suite.name}[/bold]  {suite.title}", highlight=False, soft_wrap=True)
        console.print(Padding(", ".join(model.name for model in suite.models), (0, 0, 0, 4)), highlight=False)
        for what, names in _unverified(suite).items():
            which = "all" if len(names) == len(suite.models) else shorten_list(names)
            line = escape(f"not verified, {what}: {which}")
            console.print(Padding(line, (0, 0, 0, 4)), style="yellow", highlight=False)


def _unverified(suite: Suite) -> dict[str, list[str]]:
    """Return the unverified parts of a suite's description, each with the models to which it applies."""
    models: dict[str, list[str]] = {}
    for model in suite.models:
        if model.unverified:
            models.setdefault(model.unverified, []).append(model.name)
    return models
