"""What makes code hard to read aloud is counted by kind and room, and the counts only fall.

`style_counts.toml` holds, for each kind, how many places a room may still have. A room that is not
listed may have none. `python tests/test_style.py` lowers the limits to what is there now, and
`python tests/test_style.py KIND [ROOM]` lists the places of a kind.
"""

import ast
import builtins
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIMITS = ROOT / "tests" / "style_counts.toml"
FOLDERS = ("src/repdyn", "callbacks", "tests", "benchmarks", "experiments", "docs", "examples")

COLUMNS = 100
FUNCTION_LINES = 60
BRANCHES = 12
POSITIONAL_FIELDS = 3
ASSIGNED_TOGETHER = 3
GENERIC_NAMES = {
    *("found", "one", "each", "part", "own", "known"),
    *("place", "given", "made", "kept", "wanted", "asked"),
}
"""Names that tell where a value comes from, and not what it is."""
NO_VERBS = {
    *("A", "All", "An", "Each", "Half", "How", "Shape", "That", "The"),
    *("What", "Whether", "Which", "Why"),
}
"""Words that a docstring of a function does not begin with: a sentence says what it does."""
BRANCHING = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension)
CHANGING = {"add", "append", "appendleft", "extend", "insert", "remove", "setattr", "setitem"}
"""Methods that are called for what they change: none has a result that tells anything."""

Place = tuple[int, str]
"""A line, and what is the matter there."""


@lru_cache(maxsize=1)  # every kind walks the same file before the next one
def nodes_of(tree: ast.AST) -> list[ast.AST]:
    return list(ast.walk(tree))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_truth(node: ast.expr) -> bool:
    """Return whether an expression is visibly true or false, or an array of such values."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in {"all", "any", "bool", "isinstance"}
    if isinstance(node, ast.Name):
        return node.id.startswith(("is_", "has_"))
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return negated or isinstance(node, ast.Compare | ast.BoolOp)


def is_called_for_effect(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return name in CHANGING


def packed_assignments(tree: ast.AST) -> Iterator[Place]:
    """Two computed values, or more than three of any kind, in one statement."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            if not isinstance(node.targets[0], ast.Tuple):
                continue
            values = node.value.elts
            simple = (ast.Name, ast.Constant, ast.Attribute)
            n_computed = sum(not isinstance(value, simple) for value in values)
            if n_computed > 1 or len(values) > ASSIGNED_TOGETHER:
                yield node.lineno, ast.unparse(node.targets[0])


def booleans_as_factors(tree: ast.AST) -> Iterator[Place]:
    """A product with a truth, or of a literal text, list or tuple with what may be one."""
    for node in nodes_of(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            factors = (node.left, node.right)
            literal = (ast.List, ast.Tuple, ast.JoinedStr)
            repeated = any(
                isinstance(factor, literal)
                or (isinstance(factor, ast.Constant) and isinstance(factor.value, str))
                for factor in factors
            )
            numbers = [factor.value for factor in factors if isinstance(factor, ast.Constant)]
            by_number = any(isinstance(number, int) for number in numbers)
            if any(map(is_truth, factors)) or (repeated and not by_number):
                yield node.lineno, ast.unparse(node)


def booleans_as_indices(tree: ast.AST) -> Iterator[Place]:
    """A comparison inside of brackets: of a tuple's choice, or a mask that wants a name."""
    for node in nodes_of(tree):
        is_named = isinstance(getattr(node, "slice", None), ast.Name)
        if isinstance(node, ast.Subscript) and not is_named and is_truth(node.slice):
            yield node.lineno, ast.unparse(node)


def positional_records(tree: ast.AST) -> Iterator[Place]:
    """A record of more than three fields that a reader has to count, or with a star before
    others.
    """
    for node in nodes_of(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        is_record = name[:1].isupper() and not (name.isupper() or isinstance(node.func, ast.Call))
        if is_record and len(node.args) > POSITIONAL_FIELDS:
            yield node.lineno, f"{name}: {len(node.args)} arguments without their names"


def called_conditionals(tree: ast.AST) -> Iterator[Place]:
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.IfExp):
            yield node.lineno, ast.unparse(node.func)


def lambdas_for_effect(tree: ast.AST) -> Iterator[Place]:
    """A lambda that changes something, alone or before `or`."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Lambda):
            body = node.body
            first = body.values[0] if isinstance(body, ast.BoolOp) else body
            joined = isinstance(body, ast.BoolOp) and isinstance(first, ast.Call)
            if joined or is_called_for_effect(first):
                yield node.lineno, ast.unparse(node)


def deep_comprehensions(tree: ast.AST) -> Iterator[Place]:
    """More than one loop and one condition: three things to hold in mind at once."""
    kinds = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    for node in nodes_of(tree):
        if isinstance(node, kinds):
            n_conditions = sum(len(loop.ifs) for loop in node.generators)
            if len(node.generators) > 2 or len(node.generators) + n_conditions > 2:
                yield node.lineno, f"{len(node.generators)} loops, {n_conditions} conditions"


def generic_names(tree: ast.AST) -> Iterator[Place]:
    """A name that does not say what the thing is, further from its first use than the next line."""
    inner: set[ast.AST] = set()
    for function in functions(tree):  # an outer one before those inside of it
        if function in inner:
            continue
        lines: dict[str, list[int]] = {}
        for node in ast.walk(function):
            inner.add(node)
            if isinstance(node, ast.Name) and node.id in GENERIC_NAMES:
                lines.setdefault(node.id, []).append(node.lineno)
            elif isinstance(node, ast.arg) and node.arg in GENERIC_NAMES:
                lines.setdefault(node.arg, []).append(node.lineno)
        for name, numbers in lines.items():
            if max(numbers) - min(numbers) > 1:
                length = max(numbers) - min(numbers) + 1
                yield min(numbers), f"{function.name}: {name} lives for {length} lines"


def long_functions(tree: ast.AST) -> Iterator[Place]:
    """A signature of many arguments is a list of them, and a docstring describes them."""
    for node in functions(tree):
        has_docstring = ast.get_docstring(node, clean=False) is not None
        before = node.body[0].end_lineno if has_docstring else node.body[0].lineno - 1
        length = node.end_lineno - before
        if length > FUNCTION_LINES:
            yield node.lineno, f"{node.name}: {length} lines without signature and docstring"


def branched_functions(tree: ast.AST) -> Iterator[Place]:
    """McCabe's number with conditional expressions, comprehensions and the cases of a match."""
    for node in functions(tree):
        kinds = (*BRANCHING, ast.match_case)
        number = 1 + sum(isinstance(inner, kinds) for inner in ast.walk(node))
        if number > BRANCHES:
            yield node.lineno, f"{node.name}: {number}"


def exceptions_not_named_so(tree: ast.AST) -> Iterator[Place]:
    raised = {
        name
        for name, value in vars(builtins).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    for node in nodes_of(tree):
        if isinstance(node, ast.ClassDef) and not node.name.endswith(("Error", "Warning")):
            names = {ast.unparse(base).split(".")[-1] for base in node.bases}
            if names & raised or any(name.endswith(("Error", "Exception")) for name in names):
                yield node.lineno, node.name


def private_imports(tree: ast.AST) -> Iterator[Place]:
    """A private name of another package; `internals.py` is where these are gathered."""
    for node in nodes_of(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            segments = name.split(".")
            if segments[0] not in {"repdyn", "tests", "None", "__future__"} and any(
                segment.startswith("_") and not segment.endswith("__") for segment in segments
            ):
                yield node.lineno, name


def docstrings_without_verb(tree: ast.AST) -> Iterator[Place]:
    """A docstring of a function that begins with an article, a question word or a shape."""
    for function in functions(tree):
        first = (ast.get_docstring(function) or "Return").split()[0]
        if first.rstrip(",.:;") in NO_VERBS or not first[0].isalpha():
            yield function.lineno, f"{function.name}: {first} ..."


KINDS: dict[str, Callable[[ast.AST], Iterator[Place]]] = {
    "packed_assignment": packed_assignments,
    "boolean_as_factor": booleans_as_factors,
    "boolean_as_index": booleans_as_indices,
    "positional_record": positional_records,
    "called_conditional": called_conditionals,
    "lambda_for_effect": lambdas_for_effect,
    "deep_comprehension": deep_comprehensions,
    "generic_name": generic_names,
    "long_function": long_functions,
    "branched_function": branched_functions,
    "exception_name": exceptions_not_named_so,
    "private_import": private_imports,
    "docstring_without_verb": docstrings_without_verb,
}


def room_of(path: Path) -> str:
    """Return the room of a file: a folder of the package, another folder, or `scripts`."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "src":
        inside = parts[3:] if parts[2] in {"views", "lab"} else parts[2:]
        return Path(inside[0]).stem
    return parts[0] if len(parts) > 1 else "scripts"


def files() -> Iterator[Path]:
    yield from sorted(ROOT.glob("*.py"))
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            # callbacks/ and configs/suites are seen again through links inside of the package
            if not any(parent.is_symlink() for parent in path.parents):
                yield path


def places() -> dict[str, dict[str, list[str]]]:
    """Return what there is of each kind in each room, with file and line."""
    listed: dict[str, dict[str, list[str]]] = {}
    for path in files():
        text = path.read_text()
        tree = ast.parse(text)
        by_kind = {kind: list(count(tree)) for kind, count in KINDS.items()}
        if path.name == "internals.py":
            del by_kind["private_import"]
        if room_of(path) == "tests":  # a fixture is a thing, and its docstring names it
            del by_kind["docstring_without_verb"]
        by_kind["over_100_columns"] = [
            (number, f"{len(line)} columns")
            for number, line in enumerate(text.splitlines(), start=1)
            if len(line) > COLUMNS
        ]
        for kind, kind_places in by_kind.items():
            for line, note in kind_places:
                where = f"{path.relative_to(ROOT)}:{line} {note}"
                listed.setdefault(kind, {}).setdefault(room_of(path), []).append(where)
    return listed


@pytest.fixture(scope="module")
def listed_places():
    return places()


@pytest.mark.parametrize("kind", [*KINDS, "over_100_columns"])
def test_no_room_has_more_than_it_had(kind, listed_places):
    limits = tomllib.loads(LIMITS.read_text()).get(kind, {})
    for room, in_room in listed_places.get(kind, {}).items():
        limit = limits.get(room, 0)
        assert len(in_room) <= limit, (
            f"{room} has {len(in_room)} places of {kind}, where it had {limit}:\n"
            + "\n".join(in_room)
        )


EXAMPLES = {
    "packed_assignment": ("a, b = f(x), g(y)", "a, b = 1, 2\nc, d = f(x)"),
    "boolean_as_factor": ('"s" * (n > 1)', 'n * m\n"=" * 3'),
    "boolean_as_index": ("PAIR[not rises]", "x[row, -1]\nx[is_padding]"),
    "positional_record": ("Run(a, b, c, d)", "Run(a, b, c, d=d)\nrun(a, b, c, d)"),
    "called_conditional": ("(f if a else g)(x)", "f(x) if a else g(x)"),
    "lambda_for_effect": ("lambda x: calls.append(x)", "lambda x: x.size"),
    "deep_comprehension": (
        "[x for y in z if y for x in y if x]",
        "[x for y in z for x in y]\n[x for x in y if x]",
    ),
    "generic_name": (
        "def f(x):\n    found = g(x)\n    x += 1\n    return found",
        "def f(x):\n    found = g(x)\n    return h(found)",
    ),
    "long_function": (
        "\n".join(["def f():", *("    pass" for _ in range(FUNCTION_LINES + 1))]),
        "def f():\n    '''" + "\n" * 60 + "'''\n    pass\n",
    ),
    "branched_function": (
        "\n".join(["def f(x):", *("    if x:\n        pass" for _ in range(BRANCHES))]),
        "\n".join(["def f(x):", *("    if x:\n        pass" for _ in range(BRANCHES - 1))]),
    ),
    "exception_name": ("class Stop(Exception): ...", "class StopError(Exception): ..."),
    "private_import": ("from torch.nn import _reduction", "from repdyn.store import _files"),
    "docstring_without_verb": (
        "def f():\n    '''The number of steps.'''",
        "class A:\n    '''The steps.'''\n    def f():\n        '''Return them.'''",
    ),
}
"""For each kind what is counted once, and what is not counted."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_told_from_what_is_like_it(kind):
    counted, like_it = EXAMPLES[kind]
    assert len(list(KINDS[kind](ast.parse(counted)))) == 1
    assert not list(KINDS[kind](ast.parse(like_it)))


def lower_limits() -> None:
    """Write the counts of now, where they are below the limits, or where there is no file yet."""
    old = tomllib.loads(LIMITS.read_text()) if LIMITS.exists() else None
    blocks = [
        "# Lowered by `python tests/test_style.py`, raised by nothing: see tests/test_style.py.\n"
    ]
    for kind, rooms in sorted(places().items()):
        counts = {room: len(in_room) for room, in_room in rooms.items()}
        if old is not None:
            limits = old.get(kind, {})
            counts = {room: min(n, limits.get(room, 0)) for room, n in counts.items()}
        lines = [f"{room} = {n}" for room, n in sorted(counts.items()) if n]
        if lines:
            blocks.append("\n".join([f"[{kind}]", *lines, ""]))
    LIMITS.write_text("\n".join(blocks))


def main(arguments: list[str]) -> None:
    if not arguments:
        lower_limits()
        totals = Counter({kind: sum(map(len, rooms.values())) for kind, rooms in places().items()})
        print(*(f"{kind:20} {n}" for kind, n in totals.most_common()), sep="\n")
        return
    kind, *rooms = arguments
    for room, in_room in sorted(places().get(kind, {}).items()):
        if room in rooms or not rooms:
            print(*in_room, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
