"""Suites: descriptions of published training runs in YAML, shipped or your own; see docs/suites.md."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice, pairwise, product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args

from repdyn.checkpoints.revisions import compile_pattern, whole_number
from repdyn.utils.records import read_yaml

_SHIPPED = Path(__file__).parents[1] / "suites"
_SUITE_KEYS = ("title", "card", "models", "known_faults")
_SOURCES = ("revisions", "subfolders", "commits", "checkpoints")
_DETAILS = ("branch", "tokens_per_step", "expected", "tokenizer", "run", "checked_against", "unverified")
_MODEL_KEYS = ("name", "for", "repository", *_SOURCES, *_DETAILS)
_FAULT_KEYS = ("models", "steps", "kind", "what", "report")
_CHECKPOINT_KEYS = ("for", "repository", "revision", "subfolder", "step", "tokens", "stage")
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})(?::(\d{1,18}))?", re.ASCII)
_MAX_ITEMS = 100_000

Description = TypeVar("Description")


@dataclass(frozen=True)
class PublishedCheckpoint:
    """A checkpoint that a suite lists individually."""

    repository: str
    revision: str
    subfolder: str
    step: int
    tokens_seen: int | None
    stage: str | None


FaultKind: TypeAlias = Literal["copies", "mixed", "missing", "order"]
"""Weights of another checkpoint, files of several, no weights, or names in another order than the training."""
_SHOWN_BY: dict[FaultKind, frozenset[str]] = {
    "copies": frozenset({"final weights", "identical", "no update", "embeddings"}),
    "mixed": frozenset({"shared file", "embeddings"}),
    "missing": frozenset({"missing weights", "missing step"}),
    "order": frozenset({"date"}),
}
"""The kinds of findings of an audit that show each kind of reported fault."""


@dataclass(frozen=True)
class KnownFault:
    """Checkpoints that users reported to be wrong."""

    steps: tuple[int, ...]
    """Ascending."""
    kind: FaultKind
    what: str
    report: str
    """Address of the report."""

    def is_shown_by(self, kind: str, steps: Sequence[int]) -> bool:
        """Return whether a finding of an audit, by its kind and its steps, is on some of these checkpoints."""
        return kind in _SHOWN_BY[self.kind] and not set(self.steps).isdisjoint(steps)


@dataclass(frozen=True)
class PublishedModel:
    """The published checkpoints of one training run of one model.

    They are the branches and tags of ``repository`` whose names match ``revisions``, or its folders that match
    ``subfolders``, or the commits of ``branch`` whose titles match ``commits``, or those listed in ``checkpoints``.
    """

    name: str
    suite: str
    run: str
    """Name in the rows."""
    repository: str | None = None
    revisions: str | None = None
    subfolders: str | None = None
    commits: str | None = None
    branch: str = "main"
    """Branch of ``commits``."""
    checkpoints: tuple[PublishedCheckpoint, ...] = ()
    """By ascending and distinct step."""
    tokens_per_step: int | None = None
    expected: tuple[int, ...] = ()
    """Steps that should exist, ascending; empty if unknown."""
    tokenizer: str | None = None
    """Repository of the tokenizer, if the checkpoints have none."""
    known_faults: tuple[KnownFault, ...] = ()
    checked_against: str | None = None
    """Address of the page on which names and steps were read, if that is not the card of the suite."""
    unverified: str | None = None
    """What no page of the publisher states, such as "the steps"."""


@dataclass(frozen=True)
class Suite:
    """The models described in one YAML file."""

    name: str
    title: str
    card: str
    models: tuple[PublishedModel, ...]


def read_suite(path: str | Path) -> Suite:
    """Read a suite; its name is that of the file.

    Raises:
        ValueError: the file is not valid YAML, or an entry is invalid; see docs/suites.md.
        OSError: the file cannot be read.
    """
    path = Path(path)
    suite = Entry.of_file(path, _SUITE_KEYS)
    models = [
        _published_model(entry, path.stem)
        for number, item in enumerate(suite.items("models"), start=1)
        for entry in Entry(item, _MODEL_KEYS, f"{path}, model {number}").expanded()
    ]
    for attribute in ("name", "run"):
        values = [getattr(model, attribute) for model in models]
        repeated = next((value for value in values if values.count(value) > 1), None)
        if repeated is not None:
            raise ValueError(
                f"expected a different {attribute} for each model in {path}, got {repeated!r} twice; set the key "
                f"{attribute}"
            )
    for number, item in enumerate(suite.items("known_faults") if "known_faults" in suite.fields else [], start=1):
        models = _with_fault(models, Entry(item, _FAULT_KEYS, f"{path}, known fault {number}"))
    return Suite(path.stem, suite.required("title"), suite.required("card"), tuple(models))


@cache
def shipped_suites() -> Mapping[str, Suite]:
    """Return the suites that are part of the package, by name."""
    return MappingProxyType(read_folder(_SHIPPED, read_suite))


def models_of(repository: str) -> list[PublishedModel]:
    """Return the models of the shipped suites whose checkpoints are in a repository."""
    return [model for suite in shipped_suites().values() for model in suite.models if model.repository == repository]


def find_models(names: Sequence[str]) -> list[PublishedModel]:
    """Return the models of the given names, without duplicates, in their order.

    A name is a suite ("pythia": all its models), a model ("pythia-70m"), a shell pattern over the models
    ("pythia-*-deduped"), or the path of another suite (ending in .yaml or .yml).

    Raises:
        ValueError: a name is unknown, or a suite is invalid.
        OSError: a file cannot be read.
    """
    suites = shipped_suites()
    return list(dict.fromkeys(model for name in names for model in _models_named(name, suites)))


def _models_named(name: str, suites: Mapping[str, Suite]) -> list[PublishedModel]:
    if name.endswith((".yaml", ".yml")):
        return list(read_suite(name).models)
    if name in suites:
        return list(suites[name].models)
    models = [model for suite in suites.values() for model in suite.models]
    found = [model for model in models if fnmatchcase(model.name, name)]
    if not found:
        known = [*suites, *(model.name for model in models)]
        closest = difflib.get_close_matches(name, known, n=3)
        hint = f"; did you mean {', '.join(closest)}?" if closest else ""
        raise ValueError(
            f"expected a suite ({', '.join(suites)}), one of their models, a pattern such as pythia-*-deduped, or a "
            f"file ending in .yaml, got {name!r}{hint}"
        )
    return found


def _published_model(entry: Entry, suite: str) -> PublishedModel:
    name = entry.required("name")
    if not _NAME.fullmatch(name):
        raise entry.error("a name of letters, digits and . _ + -", name, "rename it")
    sources = [key for key in _SOURCES if key in entry.fields]
    if len(sources) != 1:
        raise entry.error(f"one of {', '.join(_SOURCES)}", ", ".join(sources) or "none", "keep one")
    if "branch" in entry.fields and "commits" not in entry.fields:
        raise entry.error("the key branch only next to commits", entry.text("branch"), "remove it")
    tokens_per_step = entry.number("tokens_per_step")
    if tokens_per_step == 0:
        raise entry.error("tokens_per_step of at least 1", 0, "omit it if it is unknown")
    checkpoints = _checkpoints(entry, tokens_per_step)
    repositories = {at.repository for at in checkpoints} or {entry.required("repository")}
    run = entry.text("run") or (repositories.pop() if len(repositories) == 1 else None)
    if run is None:
        raise entry.error("the key run for checkpoints of several repositories", "none", "name the run")
    steps = {whole_number(str(step), f"step in {entry.where}") for step in entry.values("expected")}
    return PublishedModel(
        name=name,
        suite=suite,
        run=run,
        repository=entry.text("repository"),
        revisions=entry.pattern("revisions"),
        subfolders=entry.pattern("subfolders"),
        commits=entry.pattern("commits"),
        branch=entry.text("branch") or "main",
        checkpoints=checkpoints,
        tokens_per_step=tokens_per_step,
        expected=tuple(sorted(steps)),
        tokenizer=entry.text("tokenizer"),
        checked_against=entry.address("checked_against") if "checked_against" in entry.fields else None,
        unverified=entry.text("unverified"),
    )


def _with_fault(models: Sequence[PublishedModel], entry: Entry) -> list[PublishedModel]:
    """Return the models, those that an entry names with its known fault."""
    names = [str(name) for name in entry.values("models")]
    steps = {whole_number(str(step), f"step in {entry.where}") for step in entry.values("steps")}
    kind, kinds = entry.required("kind"), get_args(FaultKind)
    if kind not in kinds:
        raise entry.error(f"a kind of {', '.join(kinds)}", kind, "choose one")
    what, report = entry.required("what"), entry.address("report", "the address of a report")
    fault = KnownFault(tuple(sorted(steps)), cast(FaultKind, kind), what, report)
    if not fault.steps:
        raise entry.error("the key steps", "none", "name the steps that are wrong")
    chosen = [model for model in models if any(fnmatchcase(model.name, name) for name in names)]
    unknown = [name for name in names if not any(fnmatchcase(model.name, name) for model in models)]
    if unknown or not chosen:
        got = ", ".join(unknown) or "none"
        raise entry.error("models of this suite, or patterns of their names", got, "see the names under models")
    for model in chosen:
        known = {*model.expected, *(at.step for at in model.checkpoints)}
        if known and not steps <= known:
            raise entry.error(f"steps of {model.name}", sorted(steps - known), "correct them, or what is expected")
    return [replace(model, known_faults=(*model.known_faults, fault)) if model in chosen else model for model in models]


def _checkpoints(model: Entry, tokens_per_step: int | None) -> tuple[PublishedCheckpoint, ...]:
    """Return the checkpoints that a model lists individually."""
    if "checkpoints" not in model.fields:
        return ()
    misplaced = sorted({"repository", "expected"} & set(model.fields))
    if misplaced:
        raise model.error("neither repository nor expected next to checkpoints", misplaced, "move it to the items")
    found = [
        _published_checkpoint(entry, tokens_per_step)
        for number, item in enumerate(model.items("checkpoints"), start=1)
        for entry in model.inner(item, _CHECKPOINT_KEYS, f"checkpoint {number}").expanded()
    ]
    found.sort(key=lambda at: at.step)
    for one, other in pairwise(found):
        if one.step == other.step:
            got = f"{one.repository}@{one.revision} and {other.repository}@{other.revision} for {one.step}"
            raise model.error("one checkpoint for each step", got, "describe two models")
    return tuple(found)


def _published_checkpoint(entry: Entry, tokens_per_step: int | None) -> PublishedCheckpoint:
    step = whole_number(entry.required("step"), f"step in {entry.where}")
    tokens = entry.number("tokens")
    if tokens is None and tokens_per_step is not None:
        tokens = tokens_per_step * step
    return PublishedCheckpoint(
        entry.required("repository"),
        entry.text("revision") or "main",
        entry.text("subfolder") or "",
        step,
        tokens,
        entry.text("stage"),
    )


@dataclass(frozen=True)
class Entry:
    """One mapping of the file of a suite or recipe: its values are read with placeholders substituted, and checked."""

    fields: Mapping[str, Any]
    keys: Collection[str]
    where: str
    substitutions: Mapping[str, str] = field(default_factory=dict)
    guide: str = "docs/suites.md"
    """The page that describes the file, for messages."""

    def __post_init__(self) -> None:
        if not isinstance(self.fields, dict):
            raise self.error(f"a mapping with keys among {', '.join(self.keys)}", self.fields, f"see {self.guide}")
        for key in self.fields:
            if key not in self.keys:
                raise self.error(f"keys among {', '.join(self.keys)}", key, _closest(str(key), self.keys))

    @classmethod
    def of_file(cls, path: Path, keys: Collection[str], **settings: Any) -> Entry:
        """Read the mapping of a YAML file.

        Raises:
            ValueError: the file is not valid YAML, or has other keys.
            OSError: the file cannot be read.
        """
        return cls(read_yaml(path), keys, str(path), **settings)

    def error(self, expected: str, got: object, advice: str) -> ValueError:
        return ValueError(f"expected {expected} in {self.where}, got {got!r:.400}; {advice}")

    def inner(self, fields: Any, keys: Collection[str], name: str) -> Entry:
        return Entry(fields, keys, f"{self.where}, {name}", self.substitutions, self.guide)

    def expanded(self) -> Iterator[Entry]:
        """Yield one entry per combination of the values under ``for``, or per mapping of a list of combinations."""
        loops = self.fields.get("for", {})
        if isinstance(loops, list):
            yield from (self._substituted(combination) for combination in self.items("for"))
            return
        if not isinstance(loops, dict) or not all(isinstance(name, str) for name in loops):
            raise self.error("a mapping of names to lists under for", loops, "write for: {size: [70m, 160m]}")
        values = self.inner(loops, tuple(loops), "for").values
        combinations = list(islice(product(*map(values, loops)), _MAX_ITEMS + 1))
        if len(combinations) > _MAX_ITEMS:
            raise self.error(f"at most {_MAX_ITEMS} combinations under for", "more", "list fewer values")
        for combination in combinations:
            yield self._substituted(dict(zip(loops, combination, strict=True)))

    def _substituted(self, values: Any) -> Entry:
        """Return this entry with the values of its placeholders."""
        if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
            raise self.error(
                "mappings of names to values in the list under for", values, "write - {size: 70m, seed: 1}"
            )
        added = {name: self._text(name, value) for name, value in values.items()}
        return Entry(self.fields, self.keys, self.where, {**self.substitutions, **added}, self.guide)

    def items(self, key: str) -> list[Any]:
        items = self.fields.get(key)
        if not isinstance(items, list) or not items:
            raise self.error(f"a list under {key}", items, "begin each item with a dash")
        return items

    def values(self, key: str) -> list[int | str]:
        """Return the strings and integers of a list, with ranges such as "0..200:20" expanded, ends included."""
        values: list[int | str] = []
        for item in self.items(key) if key in self.fields else []:
            match = _RANGE.fullmatch(item) if isinstance(item, str) else None
            if match:
                start, stop, step = int(match[1]), int(match[2]), int(match[3] or 1)
                if step == 0 or stop < start or (stop - start) % step:
                    raise self.error("a range first..last:step that reaches its last value", item, "check its ends")
                if (stop - start) // step >= _MAX_ITEMS:
                    raise self.error(f"a range of at most {_MAX_ITEMS} values", item, "check its ends")
                values += range(start, stop + 1, step)
            else:
                values.append(item if isinstance(item, int) and not isinstance(item, bool) else self._text(key, item))
        return values

    def text(self, key: str, escaped: bool = False) -> str | None:
        """Return the string under a key with placeholders substituted, or None without the key."""
        if key not in self.fields:
            return None

        def fill(placeholder: re.Match[str]) -> str:
            name = placeholder[1]
            if name not in self.substitutions:
                known = _closest(name, self.substitutions)
                raise self.error(f"placeholders in {key} that are listed under for", name, known)
            return re.escape(self.substitutions[name]) if escaped else self.substitutions[name]

        return _PLACEHOLDER.sub(fill, self._text(key, self.fields[key]))

    def required(self, key: str) -> str:
        text = self.text(key)
        if not text:
            raise self.error(f"the key {key}", text, "add it")
        return text

    def address(self, key: str, name: str = "") -> str:
        """Return the required address under a key, called ``name`` in messages."""
        address = self.required(key)
        if not address.startswith("https://"):
            raise self.error(name or f"an address under {key}", address, "begin it with https://")
        return address

    def number(self, key: str) -> int | None:
        text = self.text(key)
        return None if text is None else whole_number(text, f"{key} in {self.where}")

    def pattern(self, key: str) -> str | None:
        text = self.text(key, escaped=True)
        try:
            return text if text is None else compile_pattern(text).pattern
        except ValueError as error:
            raise ValueError(f"{error} ({key} in {self.where})") from error

    def _text(self, key: str, value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.error(f"a string or an integer under {key}", value, "put it in quotes")
        return str(value)


def read_folder(folder: Path, read: Callable[[Path], Description]) -> dict[str, Description]:
    """Read every YAML file of a folder; return the descriptions by the names of their files."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.yaml"), key=lambda path: path.stem)}


def _closest(name: str, known: Collection[str]) -> str:
    matches = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {matches[0]!r}?" if matches else f"known: {', '.join(known) or 'none'}"
