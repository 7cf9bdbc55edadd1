from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from repdyn.text.corpus import Corpus
from repdyn.text.vocabulary import Vocabulary, main, vocabulary


def test_distinct_bytes_and_characters():
    assert vocabulary(Corpus("x", "aé€a".encode())) == Vocabulary("x", n_bytes=7, byte_values=6, characters=3)


def test_a_truncated_character_is_ignored():
    assert vocabulary(Corpus("x", "aé".encode()[:-1])) == Vocabulary("x", n_bytes=2, byte_values=2, characters=1)


def test_the_command_prints_raw_and_cleaned_counts(
    tmp_path: Path, make_dump: Callable[..., bytes], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "dump.xml"
    path.write_bytes(make_dump({"Fox": "'''é'''"}))
    main([str(path)])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "not enwik8" in line]
    # "Fox\n\né\n": 8 bytes; F o x newline C3 A9; F o x newline é
    assert [row[-6:] for row in rows][1] == ["8", "│", "6", "│", "5", "│"]
    assert "cleaned" in rows[1]
    assert f"{path.stat().st_size:,}" in rows[0]
