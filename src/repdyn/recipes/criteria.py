"""The kinds of criteria by which a recipe judges whether a published value is reproduced."""

from __future__ import annotations

from typing import TypeAlias

from repdyn.recipes.criteria_depth import Peak, PublishedFinding, Trend, Valley
from repdyn.recipes.criteria_models import Across, Control, Scaling, Stages
from repdyn.recipes.criteria_training import Between, Correlation, Halfway, Phases

Criterion: TypeAlias = (
    PublishedFinding | Peak | Trend | Phases | Correlation | Halfway | Between | Scaling | Stages | Across | Control
)
KINDS: dict[str, type[Criterion]] = {
    "finding": PublishedFinding,
    "peak": Peak,
    "valley": Valley,
    "trend": Trend,
    "phases": Phases,
    "correlation": Correlation,
    "halfway": Halfway,
    "between": Between,
    "scaling": Scaling,
    "stages": Stages,
    "across": Across,
    "control": Control,
}
"""The kinds of criteria, by the name that a recipe gives them."""
