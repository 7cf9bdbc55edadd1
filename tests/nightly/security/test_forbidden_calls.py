"""What runs code that a file or a name brings along stands nowhere in the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = [
    *sorted(
        path
        for path in (ROOT / "src").rglob("*.py")
        if "callbacks" not in path.relative_to(ROOT / "src").parts
    ),
    *sorted((ROOT / "callbacks").glob("*.py")),
    ROOT / "train.py",
    ROOT / "analyze_checkpoints.py",
]
# These load pickles, or are ways to import what a text names.
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
SAFE_LOADERS = {"SafeLoader", "CSafeLoader", "_PlainLoader"}


def findings(source: str) -> Iterator[str]:
    """What in a module is not allowed, with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
            )
            yield from (
                f"{node.lineno}: imports {name}"
                for name in names
                if name.partition(".")[0] in MODULES
            )
        elif isinstance(node, ast.Call):
            yield from (f"{node.lineno}: {what}" for what in forbidden(node, source))


def forbidden(call: ast.Call, source: str) -> Iterator[str]:
    name = ast.unparse(call.func)
    last = name.rpartition(".")[2]
    arguments = {keyword.arg: keyword.value for keyword in call.keywords}
    said = {key: value.value for key, value in arguments.items() if isinstance(value, ast.Constant)}
    if name in BUILTINS or name in {"os.system", "os.popen"}:
        yield f"calls {name}"
    if name == "torch.load" and said.get("weights_only") is not True:
        yield "torch.load without weights_only=True"
    if last in {"load_from_checkpoint", "pl_load"} and said.get("weights_only") is not True:
        yield f"{last} without weights_only=True"
    if last in {"load", "load_all"} and name.startswith("yaml."):
        loader = (
            ast.unparse(call.args[1])
            if len(call.args) > 1
            else ast.unparse(arguments.get("Loader", ast.Constant("")))
        )
        if loader.rpartition(".")[2] not in SAFE_LOADERS:
            yield f"{name} without a safe loader"
    if name.startswith("yaml.") and last in {
        "unsafe_load",
        "full_load",
        "unsafe_load_all",
        "full_load_all",
    }:
        yield f"calls {name}"
    if (
        said.get("allow_pickle") is True
        or said.get("shell") is True
        or said.get("trust_remote_code") is True
    ):
        yield f"{name} with allow_pickle, shell or trust_remote_code"
    # None is the name of what is passed on by **, which must be written in the same module
    # an adapter's weights are loaded without code, and its from_pretrained has no such argument
    if (
        last == "from_pretrained"
        and name != "PeftModel.from_pretrained"
        and not (
            "trust_remote_code" in arguments
            or (None in arguments and '"trust_remote_code":' in source)
        )
    ):
        yield "from_pretrained without a word on trust_remote_code"


def test_no_source_runs_what_it_is_given():
    assert len(SOURCES) > 100
    lines_of = {
        path.relative_to(ROOT).as_posix(): list(findings(path.read_text(encoding="utf-8")))
        for path in SOURCES
    }
    assert {path: lines for path, lines in lines_of.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import torch; torch.load(p)",
        "torch.load(p, weights_only=flag)",
        "yaml.load(text, Loader=yaml.Loader)",
        "np.load(p, allow_pickle=True)",
        "eval(text)",
        "os.system(text)",
        "subprocess.run(text, shell=True)",
        "AutoModel.from_pretrained(name)",
    ],
)
def test_the_scan_finds_it(source):
    assert list(findings(source))
