"""Read recipes: YAML files with the measurements and published values of a paper; see docs/reproduce.md."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from dataclasses import fields as dataclass_fields
from datetime import date
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from huggingface_hub import constants

from repdyn.checkpoints.audit import models_to_audit
from repdyn.checkpoints.suites import Entry, PublishedModel, find_models, read_folder
from repdyn.metrics import resolve
from repdyn.probe.design import DESIGNS, INDEPENDENT, MAX_VECTORS, SUBSETS
from repdyn.recipes.criteria import (
    Across,
    Between,
    Control,
    Correlation,
    Halfway,
    Peak,
    Phases,
    PublishedFinding,
    Scaling,
    Stages,
    Trend,
    Valley,
)
from repdyn.store.schema import PROBE_LOSS
from repdyn.text.source import DEFAULT_TEXT

_SHIPPED = Path(__file__).parent
_GUIDE = "docs/reproduce.md"
_SUFFIXES = (".yaml", ".yml")
_KEYS = (
    *("title", "paper", "address", "stated", "models", "revisions", "cloud", "metrics", "judged_by", "differs"),
    "published",
)
_CLOUD_KEYS = ("design", "text", "sequence_length", "max_vectors", "control")
_PUBLISHED_KEYS = ("claim", "source", "models", "metric", "criterion", "not_run", "points")
_PAPER = re.compile(r"\d{4}\.\d{4,5}")
_JUDGED_BY = Literal["intervals", "values"]
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


@dataclass(frozen=True)
class Cloud:
    """Settings by which the vectors of a layer are sampled."""

    design: str = INDEPENDENT.name
    text: str = DEFAULT_TEXT
    sequence_length: int | None = None
    max_vectors: int | None = None
    control: str | None = None
    """Name of a second design, as "shuffled", by which everything is measured too."""

    @property
    def designs(self) -> tuple[str, ...]:
        return (self.design,) if self.control is None else (self.design, self.control)

    @property
    def n_vectors(self) -> int:
        return self.max_vectors or MAX_VECTORS


@dataclass(frozen=True)
class Published:
    """A published value or finding."""

    claim: str
    source: str
    """Where in the paper it is, and how it was read."""
    models: tuple[str, ...] = ()
    """Names or patterns of the models to which it applies; empty for all models of the recipe."""
    metric: str = ""
    """With settings and a token subset, as in ``two_nn[discard=0.8]@no_sink``."""
    criterion: Criterion | None = None
    """None if there is nothing to measure."""
    not_run: str = ""
    """Why there is nothing to measure."""
    points: tuple[tuple[float, float], ...] = ()
    """Published values to draw over the measured ones: pairs of position on the horizontal axis and value."""

    def is_about(self, model: PublishedModel) -> bool:
        names = (model.name, model.run, model.repository or "")
        return not self.models or any(fnmatchcase(name, pattern) for name in names for pattern in self.models)


@dataclass(frozen=True)
class Recipe:
    """Measurements of a paper as settings of a sweep, and the values that it published."""

    name: str
    title: str
    paper: str
    """ArXiv identifier."""
    address: str
    stated: date
    """When the criteria were written, before any run."""
    models: tuple[str, ...]
    """Models, patterns or files of suites, or hub repositories."""
    revisions: str
    cloud: Cloud
    metrics: tuple[str, ...]
    by_values: bool
    """Whether values are judged as exact, because the design has no intervals."""
    differs: tuple[str, ...]
    """What differs from the paper's protocol."""
    published: tuple[Published, ...]


def read_recipe(path: str | Path) -> Recipe:
    """Read a recipe; its name is that of the file."""
    path = Path(path)
    entry = Entry.of_file(path, _KEYS, guide=_GUIDE)
    paper = entry.required("paper")
    if not _PAPER.fullmatch(paper):
        raise entry.error("an arXiv number under paper", paper, "write it in quotes, such as '2311.05928'")
    metrics = tuple(_metric(entry, "metrics", item) for item in entry.items("metrics"))
    cloud = _cloud(entry)
    published = tuple(
        _published(Entry(item, _PUBLISHED_KEYS, f"{path}, published value {number}", guide=_GUIDE), metrics, cloud)
        for number, item in enumerate(entry.items("published"), start=1)
    )
    models = tuple(_relative_to(path, text_of(entry, "models", item)) for item in entry.items("models"))
    find_models_of(models)
    return Recipe(
        path.stem,
        entry.required("title"),
        paper,
        entry.address("address", "an address of the paper"),
        _date(entry),
        models,
        entry.text("revisions") or "all",
        cloud,
        metrics,
        typed(entry, "judged_by", entry.fields.get("judged_by", "intervals"), _JUDGED_BY) == "values",
        tuple(text_of(entry, "differs", item) for item in entry.items("differs")),
        published,
    )


def shipped_recipes() -> dict[str, Recipe]:
    """Return the recipes that are part of the package, by name."""
    return read_folder(_SHIPPED, read_recipe)


def find_recipe(name: str) -> Recipe:
    """Return a shipped recipe by its name, or read one from a path that ends in .yaml or .yml."""
    if name.endswith(_SUFFIXES):
        return read_recipe(name)
    path = _SHIPPED / f"{name}.yaml"
    known = sorted(each.stem for each in _SHIPPED.glob("*.yaml"))
    if name not in known:
        closest = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {closest[0]!r}?" if closest else ""
        raise ValueError(f"expected a recipe ({', '.join(known)}) or a file ending in .yaml, got {name!r}{hint}")
    return read_recipe(path)


def find_models_of(names: Sequence[str]) -> list[PublishedModel]:
    """Return the models of the given names, without duplicates, in their order."""
    models: list[PublishedModel] = []
    # suites together, since each call reads all of them
    for in_suites, group in groupby(names, key=lambda name: "/" not in name or name.endswith(_SUFFIXES)):
        if in_suites:
            models += find_models(list(group))
        else:
            models += [model for name in group for model in models_to_audit(name, constants.ENDPOINT)]
    return list(dict.fromkeys(models))


def _relative_to(path: Path, name: str) -> str:
    """Resolve the path of a suite against the folder of the recipe; return other names unchanged."""
    return str(path.parent / name) if name.endswith(_SUFFIXES) else name


def _cloud(entry: Entry) -> Cloud:
    cloud = entry.inner(entry.fields.get("cloud", {}), _CLOUD_KEYS, "cloud")
    design, text = cloud.text("design") or INDEPENDENT.name, cloud.text("text") or DEFAULT_TEXT
    control = cloud.text("control") or None
    for name in filter(None, (design, control)):
        if name not in DESIGNS:
            raise cloud.error(f"a design among {', '.join(DESIGNS)}", name, "see docs/sampling.md")
    if control == design:
        raise cloud.error("another design under control", control, "choose one with which to compare")
    return Cloud(design, text, cloud.number("sequence_length"), cloud.number("max_vectors"), control)


def _published(entry: Entry, metrics: Sequence[str], cloud: Cloud) -> Published:
    claim, source = entry.required("claim"), entry.required("source")
    models = tuple(text_of(entry, "models", item) for item in entry.items("models")) if "models" in entry.fields else ()
    if ("criterion" in entry.fields) == ("not_run" in entry.fields):
        got = "both" if "criterion" in entry.fields else "neither"
        raise entry.error("either criterion or not_run", got, "say what counts as reproduced, or why it is not run")
    if "criterion" not in entry.fields:
        return Published(claim, source, models, not_run=entry.required("not_run"))
    metric = _measured_metric(entry, "metric", metrics)
    criterion = _criterion(entry, metrics)
    if isinstance(criterion, Control) and cloud.control is None:
        raise entry.error("a cloud with a control for a criterion of this kind", "none", "add control: shuffled")
    points = entry.items("points") if "points" in entry.fields else []
    pairs = tuple(_point(entry, item) for item in points)
    return Published(claim, source, models, metric, criterion, points=pairs)


def _point(entry: Entry, item: object) -> tuple[float, float]:
    if not isinstance(item, list) or len(item) != 2:
        raise entry.error("pairs of a place and a value under points", item, "write [[0, 0.1], [1, 0.3]]")
    x, y = (typed(entry, "points", value, float) for value in item)
    return x, y


def _criterion(entry: Entry, metrics: Sequence[str]) -> Criterion:
    """Read the settings of a criterion, each in the type of the field of that name."""
    fields = entry.fields["criterion"]
    kind = fields.get("kind") if isinstance(fields, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise entry.error(f"a criterion with a kind among {', '.join(KINDS)}", kind or fields, f"see {_GUIDE}")
    made_by = KINDS[kind]
    hints = {each.name: get_type_hints(made_by)[each.name] for each in dataclass_fields(made_by)}
    inner = entry.inner(fields, ("kind", *hints), f"criterion {kind}")
    settings = {key: typed(inner, key, value, hints[key]) for key, value in fields.items() if key in hints}
    for each in dataclass_fields(made_by):
        if each.default is MISSING and each.name not in settings:
            raise inner.error(f"the key {each.name}", "none", "add it")
    if settings.get("other", PROBE_LOSS) != PROBE_LOSS:
        _measured_metric(inner, "other", metrics)
    try:
        return made_by(**settings)
    except ValueError as error:
        raise ValueError(f"{error} ({inner.where})") from error


def _metric(entry: Entry, key: str, value: object) -> str:
    """Return the name of a metric if the sweep would accept it."""
    name = text_of(entry, key, value)
    try:
        resolve([name], subsets=SUBSETS)
    except ValueError as error:
        raise ValueError(f"{error} ({key} in {entry.where})") from error
    return name


def _measured_metric(entry: Entry, key: str, metrics: Sequence[str]) -> str:
    name = _metric(entry, key, entry.required(key))
    measured = {(metric.name, subset) for metric, subset in resolve(list(metrics))}
    if not {(metric.name, subset or "all") for metric, subset in resolve([name])} & measured:
        raise entry.error(f"a metric that the recipe measures under {key}", name, "add it to metrics")
    return name


def _date(entry: Entry) -> date:
    value = entry.fields.get("stated")
    if not isinstance(value, date):
        raise entry.error("the date of the criteria under stated", value, "write it as 2026-11-23")
    return value


def typed(entry: Entry, key: str, value: Any, hint: Any) -> Any:
    """Return a value as the type of a field: a literal, number, flag, string or tuple."""
    inner = get_args(hint)
    if get_origin(hint) is Literal:
        if value not in inner:
            raise entry.error(f"{key} among {', '.join(inner)}", value, "choose one of them")
        return value
    if get_origin(hint) is tuple:
        n = None if inner[-1] is Ellipsis else len(inner)
        if not isinstance(value, list) or not value or n not in {None, len(value)}:
            raise entry.error(f"a list of {n or 'one or more'} values under {key}", value, "write [0.25, 0.75]")
        found = tuple(typed(entry, key, each, inner[0]) for each in value)
        if n == 2 and found[0] > found[1]:
            raise entry.error(f"the lower bound first under {key}", value, "exchange them")
        return found
    if get_origin(hint) is UnionType:
        return typed(entry, key, value, inner[0])
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise entry.error(f"a finite number under {key}", value, "write 0.1 for 10%")
        return float(value)
    if not isinstance(value, hint):
        raise entry.error(f"{'true or false' if hint is bool else 'a string'} under {key}", value, "correct it")
    return value


def text_of(entry: Entry, key: str, value: object) -> str:
    """Return a value if it is a string that is not blank, and raise ValueError otherwise."""
    if not isinstance(value, str) or not value.strip():
        raise entry.error(f"strings under {key}", value, "put it in quotes")
    return value
