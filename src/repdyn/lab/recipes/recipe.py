"""Read recipes: YAML files with the measurements and published values of a paper; see
docs/reproduce.md.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from huggingface_hub import constants
from pydantic import AfterValidator, Field

from repdyn.checkpoints.audit import models_to_audit
from repdyn.checkpoints.suites import Address, PublishedModel, Strict, read_folder
from repdyn.checkpoints.weight_files import GGUF
from repdyn.lab.recipes.cells import Cell
from repdyn.lab.recipes.criteria import Between, Extreme, Phases, PublishedFinding
from repdyn.metrics import resolve
from repdyn.probe.corpus import DEFAULT_TEXT
from repdyn.probe.design import INDEPENDENT, SUBSETS, resolve_design
from repdyn.utils.mistyped import did_you_mean
from repdyn.utils.records import read_yaml, validated

_SHIPPED = Path(__file__).parent
_SUFFIXES = (".yaml", ".yml")
_ARXIV = re.compile(r"\d{4}\.\d{4,5}")
AnyCriterion: TypeAlias = Annotated[
    PublishedFinding | Extreme | Phases | Between | Cell, Field(discriminator="kind")
]


def _known(name: str) -> str:
    """Return the name of a metric if the sweep would accept it."""
    # without a probe: what a recipe measures on is made when it runs
    resolve([name], subsets=SUBSETS)
    return name


Text: TypeAlias = Annotated[str, Field(pattern=r"\S")]
_Texts: TypeAlias = Annotated[tuple[Text, ...], Field(min_length=1)]
_Study: TypeAlias = Annotated[str, Field(pattern="^(anatomy|convergence|sentences|tokens|topics)$")]
_Metric: TypeAlias = Annotated[str, AfterValidator(_known)]
_Design: TypeAlias = Annotated[str, AfterValidator(lambda name: resolve_design(name).name)]


JudgedBy: TypeAlias = Literal["intervals", "bands", "values"]
"""What decides between published and measured values."""
BY_WHAT: dict[JudgedBy, str] = {
    "intervals": "ratios judged by their 95% intervals",
    "bands": (
        "judged by the paper's bands, one standard deviation over batches that share windows, "
        "since the design has no intervals"
    ),
    "values": "values judged as exact, since the design has no intervals",
}


@Strict
@dataclass(frozen=True)
class Cloud:
    """Settings by which the vectors of a layer are sampled."""

    design: _Design = INDEPENDENT.name
    text: str = DEFAULT_TEXT
    sequence_length: int | None = None
    max_vectors: int | None = None
    batch_vectors: int | None = None
    vectors_per_dimension: int = 0
    """Least number of vectors in a batch, as a multiple of the dimension."""


@Strict
@dataclass(frozen=True)
class Published:
    """A published value or finding."""

    claim: Text
    source: Text
    """Where in the paper it is, and how it was read."""
    models: tuple[Text, ...] = ()
    """Names or patterns of the models to which it applies; empty for all models of the recipe."""
    metric: _Metric | Literal[""] = ""
    """With settings and a subset, as in ``two_nn[discard=0.8]@no_sink``."""
    criterion: AnyCriterion | None = None
    """None if there is nothing to measure."""
    not_run: str = ""
    """Why there is nothing to measure."""
    points: tuple[tuple[float, float], ...] = ()
    """Published values to draw over the measured ones: pairs of position on the horizontal axis and
    value.
    """

    def __post_init__(self) -> None:
        # a cell is in the table of a study, which no metric names
        of_metric = self.criterion is not None and not isinstance(self.criterion, Cell)
        if (self.criterion is None) != bool(self.not_run) or of_metric != bool(self.metric):
            raise ValueError(
                "expected a metric with its criterion, a criterion of kind cell, or not_run; say "
                "why it is not run"
            )

    def is_about(self, model: PublishedModel) -> bool:
        names = (model.name, model.run, model.repository or "")
        return not self.models or any(
            fnmatchcase(name, pattern) for name in names for pattern in self.models
        )


@Strict
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Measurements of a paper as settings of a sweep and of studies, and the values that it
    published.
    """

    name: str
    title: Text
    paper: Text
    """Number on arXiv, or author, journal and year."""
    address: Address
    stated: date
    """When the criteria were written, before any run."""
    models: _Texts
    """Models, patterns or files of suites, or hub repositories."""
    revisions: str = "all"
    cloud: Cloud = Cloud()
    metrics: tuple[_Metric, ...] = ()
    studies: dict[_Study, dict[str, Any]] = field(default_factory=dict)
    """Studies with their options, as ``repdyn study`` takes them."""
    judged_by: JudgedBy = "intervals"
    """Whether the interval of a value is that of another probe, or for a design without, the
    paper's band, or the value alone, taken as exact."""
    differs: _Texts
    """What differs from the paper's protocol."""
    published: Annotated[tuple[Published, ...], Field(min_length=1)]

    def __post_init__(self) -> None:
        if not (self.metrics or self.studies):
            raise ValueError("expected metrics or studies, got neither")
        measured = _measured(self.metrics)
        for published in self.published:
            if (
                isinstance(published.criterion, Cell)
                and published.criterion.study not in self.studies
            ):
                raise ValueError(
                    f"expected a study of the recipe, got {published.criterion.study!r}; add it to "
                    "studies"
                )
            if published.metric and not _measured([published.metric]) & measured:
                raise ValueError(
                    f"expected a metric that the recipe measures, got {published.metric!r}; add it "
                    "to metrics"
                )

    @property
    def reference(self) -> str:
        """Return title and place of the paper."""
        return f"{self.title} ({'arXiv ' if _ARXIV.fullmatch(self.paper) else ''}{self.paper})"


def _measured(metrics: Sequence[str]) -> set[tuple[str, str]]:
    return {
        (request.name, request.subset) for request in (resolve(list(metrics)) if metrics else ())
    }


def read_recipe(path: str | Path) -> Recipe:
    """Read a recipe; its name is that of the file."""
    path = Path(path)
    content = read_yaml(path)
    if isinstance(content, dict) and isinstance(content.get("models"), list):
        # the path of a suite is relative to the recipe
        models = [
            str(path.parent / name) if str(name).endswith(_SUFFIXES) else name
            for name in content["models"]
        ]
        content |= {"name": path.stem, "models": models}
    recipe: Recipe = validated(Recipe, content, str(path))
    # a name that does not exist is an error here rather than after the first downloads
    find_models_of(recipe.models)
    return recipe


def shipped_recipes() -> dict[str, Recipe]:
    """Return the recipes that are part of the package, by name."""
    return read_folder(_SHIPPED, read_recipe)


def find_recipe(name: str) -> Recipe:
    """Return a shipped recipe by its name, or read one from a path that ends in .yaml or .yml."""
    if name.endswith(_SUFFIXES):
        return read_recipe(name)
    shipped = sorted(path.stem for path in _SHIPPED.glob("*.yaml"))
    if name not in shipped:
        hint = did_you_mean(name, shipped)
        raise ValueError(
            f"expected a recipe ({', '.join(shipped)}) or a file ending in .yaml, got "
            f"{name!r}{hint}"
        )
    return read_recipe(_SHIPPED / f"{name}.yaml")


def is_local(name: str) -> bool:
    """Return whether a name is that of a model on this machine: a folder of save_pretrained, or a
    GGUF file.
    """
    return (Path(name) / "config.json").is_file() or (name.endswith(GGUF) and Path(name).is_file())


def find_models_of(names: Sequence[str]) -> list[PublishedModel]:
    """Return the models of the given names, without duplicates: of this machine, of suites, of hub
    repositories.
    """
    models: dict[PublishedModel, None] = {}
    for name in names:
        if is_local(name):
            models[PublishedModel(name=Path(name).name, suite="", run=name, repository=name)] = None
        else:
            models |= dict.fromkeys(models_to_audit(name, constants.ENDPOINT))
    return list(models)
