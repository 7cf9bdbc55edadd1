"""Suites: descriptions of published training runs in YAML, shipped or your own.

docs/suites.md has the format. A file is read in three steps: lists under ``for`` are expanded to
one mapping per model, placeholders are filled in, and each mapping becomes a record.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, StrictStr, with_config

from repdyn.utils.mistyped import did_you_mean
from repdyn.utils.records import read_yaml, validated
from repdyn.utils.steps import whole_number

_SHIPPED = Path(__file__).parents[1] / "suites"
_PATTERNS = ("revisions", "commits")
_SOURCES = (*_PATTERNS, "checkpoints")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?::(\d+))?", re.ASCII)
_GROUPS = ("step", "tokens", "stage")

Description = TypeVar("Description")


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with a group ``step`` and optional groups ``tokens`` and ``stage``."""
    try:
        compiled = re.compile(pattern)
    # deep nesting and huge repetitions raise the latter two
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"expected a regular expression, got {pattern!r:.80}: {error}") from error
    groups = list(compiled.groupindex)
    if "step" not in groups or not set(groups) <= set(_GROUPS):
        raise ValueError(
            f"expected the named group step, and no others than tokens and stage, in {pattern!r}, "
            "got "
            rf"{', '.join(groups) or 'none'}; write the step as (?P<step>\d+)"
        )
    return compiled


def require_distinct_steps(named: Iterable[tuple[int, str]], advice: str) -> None:
    """Check that checkpoints, given by step and name, have one step each."""
    # a curve has one value at each step, and rows are identified by it
    for (step, name), (next_step, next_name) in pairwise(sorted(named)):
        if step == next_step:
            raise ValueError(
                f"expected one checkpoint for each step, got {name} and {next_name} for {step}; "
                f"{advice}"
            )


def expand_ranges(items: Iterable[Any]) -> list[Any]:
    """Return the items of a list, with ranges such as "0..200:20" expanded, ends included."""
    values: list[Any] = []
    for item in items:
        if match := _RANGE.fullmatch(str(item)):
            start = int(match[1])
            stop = int(match[2])
            step = int(match[3] or 1)
            if step == 0 or start > stop or (stop - start) % step:
                raise ValueError(
                    f"expected a range first..last:step that reaches its last value, got {item!r}"
                )
            values += range(start, stop + 1, step)
        else:
            values.append(item)
    return values


# a mistyped key is an error, and not left out in silence
Strict = with_config({"extra": "forbid", "allow_inf_nan": False})
Address: TypeAlias = Annotated[str, Field(pattern="^https://")]
_Number: TypeAlias = Annotated[
    int, BeforeValidator(lambda value: whole_number(str(value), "number"))
]
_Steps: TypeAlias = Annotated[
    tuple[int, ...],
    BeforeValidator(
        lambda items: sorted({whole_number(str(item), "step") for item in expand_ranges(items)})
    ),
]
_Value: TypeAlias = StrictInt | StrictStr
_Values: TypeAlias = Annotated[list[_Value], AfterValidator(expand_ranges)]
_Loops: TypeAlias = list[dict[str, _Value]] | dict[str, _Values]
_Pattern: TypeAlias = Annotated[
    str | None, AfterValidator(lambda text: text and compile_pattern(text).pattern)
]


@Strict
@dataclass(frozen=True)
class PublishedCheckpoint:
    """A checkpoint that a suite lists individually."""

    repository: str
    step: _Number
    revision: str = "main"
    tokens: _Number | None = None
    stage: str | None = None


@Strict
@dataclass(frozen=True)
class KnownFault:
    """Checkpoints that users reported to be wrong."""

    steps: Annotated[_Steps, Field(min_length=1)]
    """Ascending."""
    what: str
    report: Address


@Strict
@dataclass(frozen=True)
class PublishedModel:
    """The published checkpoints of one training run of one model.

    They are the branches and tags of ``repository`` whose names match ``revisions``, or the commits
    of ``branch`` whose titles match ``commits``, or those listed in ``checkpoints``.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.+-]*$")]
    suite: str
    run: str
    """Name in the rows."""
    repository: str | None = None
    revisions: _Pattern = None
    commits: _Pattern = None
    branch: str = "main"
    """Branch of ``commits``."""
    checkpoints: tuple[PublishedCheckpoint, ...] = ()
    """By ascending and distinct step."""
    tokens_per_step: Annotated[_Number, Field(ge=1)] | None = None
    expected: _Steps = ()
    """Steps that should exist, ascending; empty if unknown."""
    tokenizer: str | None = None
    """Repository of the tokenizer, if the checkpoints have none."""
    known_faults: tuple[KnownFault, ...] = ()
    checked_against: Address | None = None
    """Address of the page on which names and steps were read, if that is not the card of the suite.
    """
    unverified: str | None = None
    """What no page of the publisher states, such as "the steps"."""


ModelLike: TypeAlias = str | PublishedModel


@Strict
@dataclass(frozen=True)
class Suite:
    """The models described in one YAML file."""

    name: str
    title: str
    card: str
    models: tuple[PublishedModel, ...]


@Strict
@dataclass(frozen=True)
class _File:
    """The content of a file, before models are expanded."""

    title: str
    card: str
    models: list[dict[str, Any]]
    known_faults: list[dict[str, Any]] = ()  # type: ignore[assignment]


def read_suite(path: str | Path) -> Suite:
    """Read a suite; its name is that of the file."""
    path = Path(path)
    file = validated(_File, read_yaml(path), str(path))
    models = []
    for number, item in enumerate(file.models, start=1):
        where = f"{path}, model {number}"
        models += [_published_model(fields, path.stem, where) for fields in _expanded(item, where)]
    # both identify a model: on a command line, and in a store
    for attribute in ("name", "run"):
        values = [getattr(model, attribute) for model in models]
        repeated = next((value for value in values if values.count(value) > 1), None)
        if repeated is not None:
            raise ValueError(
                f"expected a different {attribute} for each model in {path}, got {repeated!r} "
                f"twice; set the key {attribute}"
            )
    for number, item in enumerate(file.known_faults, start=1):
        models = _with_fault(models, item, f"{path}, known fault {number}")
    return Suite(name=path.stem, title=file.title, card=file.card, models=tuple(models))


@cache
def shipped_suites() -> Mapping[str, Suite]:
    """Return the suites that are part of the package, by name."""
    return MappingProxyType(read_folder(_SHIPPED, read_suite))


def models_of(repository: str) -> list[PublishedModel]:
    """Return the models of the shipped suites whose checkpoints are in a repository."""
    models = [model for suite in shipped_suites().values() for model in suite.models]
    return [model for model in models if model.repository == repository]


def find_models(names: str | Path | Sequence[ModelLike]) -> list[PublishedModel]:
    """Return the models of a name or several, and those given themselves, without duplicates, in
    their order.

    A name is a suite ("pythia": all its models), a model ("pythia-70m"), a shell pattern over the
    models ("pythia-*-deduped"), or the path of another suite (ending in .yaml or .yml).
    """
    if isinstance(names, str | Path):
        names = [str(names)]
    # a mapping, since it keeps the order and no duplicates
    selected: dict[PublishedModel, None] = {}
    for name in names:
        chosen = [name] if isinstance(name, PublishedModel) else _models_named(name)
        selected |= dict.fromkeys(chosen)
    return list(selected)


def _models_named(name: str) -> list[PublishedModel]:
    if name.endswith((".yaml", ".yml")):
        return list(read_suite(name).models)
    suites = shipped_suites()
    models = [model for suite in suites.values() for model in suite.models]
    # upper and lower case count, as on the hub
    chosen = [model for model in models if name == model.suite or fnmatchcase(model.name, name)]
    if not chosen:
        hint = did_you_mean(name, [*suites, *(model.name for model in models)])
        raise ValueError(
            f"expected a suite ({', '.join(suites)}), one of their models, a pattern such as "
            f"pythia-*-deduped, or a file ending in .yaml, got {name!r}{hint}"
        )
    return chosen


def _published_model(fields: dict[str, Any], suite: str, where: str) -> PublishedModel:
    # the run is called as the repository where there is one alone
    listed = [item.get("repository") for item in fields.get("checkpoints", ())]
    # a value of another type is refused by the record
    repositories = {name for name in listed if isinstance(name, str)}
    repositories |= {fields.get("repository")} - {None}
    run = {"run": repositories.pop()} if len(repositories) == 1 else {}
    model = validated(PublishedModel, {**run, **fields, "suite": suite}, where)
    sources = [key for key in _SOURCES if getattr(model, key)]
    if len(sources) != 1:
        raise ValueError(
            f"expected one of {', '.join(_SOURCES)} in {where}, got "
            f"{', '.join(sources) or 'none'}; keep one"
        )
    if bool(model.repository) == bool(model.checkpoints) or (model.checkpoints and model.expected):
        raise ValueError(
            "expected either the key repository, with expected, or checkpoints with repositories "
            f"of their own in {where}, got both or neither"
        )
    checkpoints = sorted(model.checkpoints, key=lambda at: at.step)
    named = [(at.step, f"{at.repository}@{at.revision}") for at in checkpoints]
    require_distinct_steps(named, f"describe two models in {where}")
    per_step = model.tokens_per_step
    if per_step is not None:
        checkpoints = [
            at if at.tokens is not None else replace(at, tokens=per_step * at.step)
            for at in checkpoints
        ]
    return replace(model, checkpoints=tuple(checkpoints))


def _with_fault(
    models: Sequence[PublishedModel], fields: dict[str, Any], where: str
) -> list[PublishedModel]:
    """Return the models, those that an entry names with its known fault."""
    # what is left of the entry is the fault itself
    names = [str(name) for name in fields.pop("models", ())]
    fault = validated(KnownFault, fields, where)
    chosen = [model for model in models if any(fnmatchcase(model.name, name) for name in names)]
    unknown = [name for name in names if not any(fnmatchcase(model.name, name) for model in models)]
    if unknown or not chosen:
        raise ValueError(
            f"expected models of this suite in {where}, got {', '.join(unknown) or 'none'}"
        )
    for model in chosen:
        steps = {*model.expected, *(at.step for at in model.checkpoints)}
        others = set(fault.steps) - steps
        if steps and others:
            raise ValueError(f"expected steps of {model.name} in {where}, got {sorted(others)}")
    return [
        replace(model, known_faults=(*model.known_faults, fault)) if model in chosen else model
        for model in models
    ]


def _expanded(
    item: dict[str, Any], where: str, values: Mapping[str, _Value] | None = None
) -> list[dict[str, Any]]:
    """Return one mapping per combination of the values under ``for``, or per mapping of a list of
    combinations.

    Args:
        item: a mapping of the file, with placeholders.
        where: the place in the file, for messages.
        values: those of the placeholders that are already known, from around the item.
    """
    values = values or {}
    loops: Any = validated(_Loops, _filled(item.get("for", {}), values, where), where)
    # lists of values stand for all their combinations; without "for", for a single empty one
    if isinstance(loops, dict):
        loops = [dict(zip(loops, choice, strict=True)) for choice in product(*loops.values())]
    rest = {key: value for key, value in item.items() if key != "for"}
    return [_filled(rest, {**values, **combination}, where) for combination in loops]


def _filled(value: Any, values: Mapping[str, _Value], where: str, key: str = "") -> Any:
    """Return a value of the file with its placeholders replaced, as literal text in patterns."""
    if isinstance(value, dict):
        return {name: _filled(inner, values, where, name) for name, inner in value.items()}
    if key == "checkpoints":
        # these may have a for of their own
        items = validated(list[dict[str, Any]], value, where)
        return [fields for item in items for fields in _expanded(item, where, values)]
    if isinstance(value, list):
        return [_filled(inner, values, where, key) for inner in value]
    if not isinstance(value, str):
        return value

    def fill(placeholder: re.Match[str]) -> str:
        name = placeholder[1]
        if name not in values:
            hint = did_you_mean(name, values)
            raise ValueError(
                f"expected placeholders in {where} that are listed under for, got {name!r}{hint}"
            )
        text = str(values[name])
        # "7.1b" in a pattern means a full stop
        return re.escape(text) if key in _PATTERNS else text

    return _PLACEHOLDER.sub(fill, value)


def read_folder(folder: Path, read: Callable[[Path], Description]) -> dict[str, Description]:
    """Read every YAML file of a folder; return the descriptions by the names of their files."""
    return {
        path.stem: read(path) for path in sorted(folder.glob("*.yaml"), key=lambda path: path.stem)
    }
