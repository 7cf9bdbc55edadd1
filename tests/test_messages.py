"""The page of the likeliest messages quotes those that are raised, and what it says to do works."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
from jobs import Job, batches, trainer
from small import HandWritten, random_tokens

from repdyn import Probe, measure
from repdyn.callbacks import RepresentationDynamics
from repdyn.data.tokens import byte_tokenizer
from repdyn.utils import extras

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "it_says.md").read_text()
QUOTED = re.findall(r"^\| (`.+?`) \|", PAGE, re.MULTILINE)


def quoted(word: str) -> str:
    """Return the one message of the page with a word, as a pattern: dots stand for anything, and
    numbers for any."""
    (cell,) = (each for each in QUOTED if word in each)
    pattern = re.escape(re.findall("`(.+?)`", cell)[0]).replace(r"\.\.\.", ".*")
    return re.sub(r"\d[\d,]*", r"[\\d,]+", pattern.replace(r"step\ N", r"step\ 1"))


def pieces_of_the_source() -> str:
    """Return all texts of the source, one a line; what an f-string fills in ends a line."""
    pieces = []
    for path in [*(ROOT / "src/repdyn").rglob("*.py"), *(ROOT / "callbacks").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                pieces.append(node.value)
    return "\n".join(pieces)


def test_each_message_of_the_page_is_in_the_source():
    """A message was worded anew, and the page quotes the old one."""
    source = pieces_of_the_source()
    assert len(QUOTED) >= 18
    for cell in QUOTED:
        message = re.findall("`(.+?)`", cell)[0]
        # names, numbers and what is left out differ from case to case
        for piece in re.split(r"\.\.\.|'[^']*'|\d[\d,.]*%?|\bN\b", message):
            assert piece.strip(" ;:,") in source, message


def test_no_data(tmp_path):
    with pytest.raises(ValueError, match=quoted("take a probe")):
        trainer(tmp_path, RepresentationDynamics(), num_sanity_val_steps=0).fit(
            Job(), batches(), iter(batches())
        )


def test_texts():
    with pytest.raises(ValueError, match=quoted("texts without")):
        Probe.from_dataset(["a text"])
    assert Probe.from_dataset(["a text of some length"], byte_tokenizer()).tokens.numel()


def test_few_vectors_and_long_rows():
    with pytest.warns(UserWarning, match=quoted("were requested")):
        Probe.from_dataset(random_tokens(40, 20))
    with pytest.warns(UserWarning, match=quoted("cut into windows")):
        Probe.from_dataset(random_tokens(64, 1024))


def test_blocks_that_are_not_found():
    probe = Probe.from_tokens(random_tokens(40, 12), max_vectors=64)
    with pytest.raises(ValueError, match=quoted("matches none")):
        measure(HandWritten(), probe, layers="encoder.*")


def test_padding():
    rows = [row[: 8 + number % 4] for number, row in enumerate(random_tokens(40, 12).tolist())]
    with pytest.raises(ValueError, match=quoted("padding")):
        measure(HandWritten(), Probe.from_tokens(rows, max_vectors=64))


def test_a_missing_package(monkeypatch):
    with pytest.raises(extras.MissingPackageError, match=quoted("matplotlib")):
        raise extras.with_extra(ModuleNotFoundError(name="matplotlib"), "the report") or OSError


def test_what_is_logged(tmp_path, caplog, capsys):
    """Those of a training: a layer without value, weights that stay, and the cost."""
    ids = torch.full((40, 12), 7)

    class Still(Job):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    probe = Probe.from_tokens(ids, max_vectors=64)
    attached = RepresentationDynamics(probe, schedule=2, report=False)
    trainer(tmp_path, attached, max_steps=8).fit(Still(), batches())
    logged = "\n".join(record.message for record in caplog.records)
    assert re.search(quoted("is undefined"), logged)
    assert re.search(quoted("the weights are"), logged.replace("step 0", "step 1"))
    assert re.search(quoted("as scheduled"), capsys.readouterr().err)
