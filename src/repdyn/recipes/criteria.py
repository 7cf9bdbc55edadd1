"""The kinds of criteria by which a recipe judges whether a published value is reproduced."""

from __future__ import annotations

from typing import TypeAlias

from repdyn.recipes.criteria_depth import Peak, PublishedFinding, Valley
from repdyn.recipes.criteria_models import Control, Scaling, Stages
from repdyn.recipes.criteria_training import Between, Correlation, Halfway, Phases

Criterion: TypeAlias = PublishedFinding | Peak | Phases | Correlation | Halfway | Between | Scaling | Stages | Control
KINDS: dict[str, type[Criterion]] = {
    "finding": PublishedFinding,
    "peak": Peak,
    "valley": Valley,
    "phases": Phases,
    "correlation": Correlation,
    "halfway": Halfway,
    "between": Between,
    "scaling": Scaling,
    "stages": Stages,
    "control": Control,
}
"""The kinds of criteria, by the name that a recipe gives them."""
