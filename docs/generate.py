"""Writes the pages that are made of the package itself: the Python API, all metrics, the columns.

    python docs/generate.py

They are committed, so that the manual can be read where it lies, and a test compares them with what
this program would write. docs/api_template.txt has the order and the prose of the API page; a line
`::: repdyn.NAME` in it stands for what the docstrings say of that name, and in braces behind it are
the only members that are shown.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from runpy import run_path
from types import ModuleType
from typing import Any, is_typeddict

from repdyn.store.meanings import column_meanings
from repdyn.store.schema import SCHEMA

FOLDER = Path(__file__).parent
_PLACEHOLDER = re.compile(r"^::: ([\w.]+)(?: \{(.*)\})?$", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_DOCTEST = re.compile(r"^>>> .*(?:\n\S.*)*", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields|Examples?):\n((?:(?: {4}.*)?\n)+)")
_ENTRY = re.compile(r"^(\*{0,2}[\w.]+(?:, \w+)*): ", re.MULTILINE)
_SIGNATURE_COLUMNS = 88


def pages() -> dict[str, str]:
    """Return the text of every generated page, by the name of its file."""
    return {
        "all_metrics.md": run_path(str(FOLDER / "site_metrics.py"))["markdown"](),
        "api.md": api(),
        "columns.md": columns(),
    }


def columns() -> str:
    """Return the table of the columns of a store, with their types and meanings."""
    lines = [
        "# Columns of a store",
        "",
        "Every value of a store is a row of a Parquet file, and every row has these columns. The",
        "meaning of each also stands in the files themselves, as the metadata `meaning` of its",
        "field. [Stores](stores.md) shows how pandas, DuckDB and Polars read the files.",
        "",
        "| column | type | may be empty | meaning |",
        "|---|---|---|---|",
    ]
    meanings = column_meanings()
    for field in SCHEMA:
        empty = "yes" if field.nullable else ""
        meaning = meanings[field.name].replace("|", "\\|")
        lines.append(f"| `{field.name}` | {field.type} | {empty} | {meaning} |")
    return "\n".join(lines) + "\n"


def api() -> str:
    """Return the page of the API: the template with an entry in place of each placeholder."""
    template = (FOLDER / "api_template.txt").read_text(encoding="utf-8")
    text = _PLACEHOLDER.sub(_entry_of, template)
    return re.sub(r"\n{3,}", "\n\n", text)


def _entry_of(placeholder: re.Match[str]) -> str:
    shown = resolve(placeholder[1])
    if isinstance(shown, ModuleType):
        public = {name: value for name, value in sorted(vars(shown).items()) if name[0] != "_"}
        callables = {name: value for name, value in public.items() if callable(value)}
        return "\n".join(_entry(value, name, "###") for name, value in callables.items())
    members = None if placeholder[2] is None else placeholder[2].split()
    return _entry(shown, placeholder[1], "###", members)


def resolve(name: str) -> Any:
    """Return what a dotted name stands for."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(import_module(module), attribute)


def _entry(shown: Any, name: str, heading: str, members: list[str] | None = None) -> str:
    """Return the section of a class or function: its signature, its docstring, its members."""
    title = f"{heading} `{name}`"
    blocks = [title, _signature(shown, name.rpartition(".")[2]), _markdown(shown)]
    if inspect.isclass(shown):
        blocks += ["\n".join(_fields(shown))]
        for member in _members(shown, members):
            blocks += [_entry(getattr(shown, member), f"{shown.__name__}.{member}", heading + "#")]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _members(shown: type, only: list[str] | None) -> list[str]:
    names = [
        name
        for name, value in vars(shown).items()
        if not name.startswith("_")
        and (inspect.isroutine(value) or isinstance(value, property | classmethod | staticmethod))
        and inspect.getdoc(getattr(shown, name))
    ]
    return [name for name in names if only is None or name in only]


def _fields(shown: type) -> Iterator[str]:
    """Yield a line for each annotated attribute of a class that has a docstring below it."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(shown))).body
    assert isinstance(definition, ast.ClassDef)
    for statement, after in pairwise(definition.body):
        is_field = isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if is_field and is_text and not statement.target.id.startswith("_"):
            text = " ".join(str(after.value.value).split())
            kind = ast.unparse(statement.annotation)
            yield f"- **{statement.target.id}** (`{kind}`): {_plain(text)}"


def _signature(shown: Any, name: str) -> str:
    if not callable(shown) or is_typeddict(shown):
        return ""
    signature = inspect.signature(shown)
    returns = signature.return_annotation
    shown_returns = returns if isinstance(returns, str) else inspect.formatannotation(returns)
    behind = "" if returns is inspect.Signature.empty else f" -> {shown_returns}"
    words = []
    star_is_due = True
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            star_is_due = False
        if parameter.kind is parameter.KEYWORD_ONLY and star_is_due:
            words.append("*")
            star_is_due = False
        words.append(_parameter(parameter))
    on_one_line = f"{name}({', '.join(words)}){behind}"
    if len(on_one_line) > _SIGNATURE_COLUMNS:
        on_one_line = "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){behind}"])
    return f"```text\n{on_one_line}\n```"


def _parameter(parameter: inspect.Parameter) -> str:
    text = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }.get(parameter.kind, "") + parameter.name
    if parameter.annotation is not inspect.Parameter.empty:
        annotation = parameter.annotation
        text += ": "
        text += annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    if parameter.default is not inspect.Parameter.empty:
        default = re.sub(r"<.*>", "...", repr(parameter.default))
        text += f" = {default}" if ":" in text else f"={default}"
    return text


def _markdown(shown: Any) -> str:
    """Return a docstring in Markdown: sections as lists, doctests as code."""
    text = (inspect.getdoc(shown) or "") + "\n"
    blocks = []
    for block in re.split(r"\n(?=(?:Args|Attributes|Raises|Returns|Yields|Examples?):\n)", text):
        section = _SECTION.match(block)
        if section is None:
            blocks.append(_with_code(block))
            continue
        body = textwrap.dedent(section[2])
        blocks += [f"**{section[1]}**", _listed(body), _with_code(block[section.end() :])]
    return "\n\n".join(block.strip("\n") for block in blocks if block.strip())


def _listed(body: str) -> str:
    if not _ENTRY.match(body):
        return _with_code(body)
    entries = re.split(r"\n(?=\S)", body.strip("\n"))
    return "\n".join(
        "- " + _plain(_ENTRY.sub(r"**\1**: ", " ".join(entry.split()), count=1))
        for entry in entries
    )


def _with_code(text: str) -> str:
    return _DOCTEST.sub(r"```pycon\n\g<0>\n```", _plain(text))


def _plain(text: str) -> str:
    """Return a text without the roles of Sphinx, and with code in single backticks."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def main() -> None:
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
