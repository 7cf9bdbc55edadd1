"""Texts, archives and tokenizers of any content: bytes as they are, or an error that names the
file.
"""

from __future__ import annotations

import gzip
import lzma
import zipfile
from pathlib import Path

import pytest
from sweeping import attempt

from repdyn.data.datamodule import TextDataModule
from repdyn.data.tokens import load_tokenizer
from repdyn.probe.clean import articles, clean_dump
from repdyn.probe.corpus import read_corpus

PROSE = b"A line of text, and another one.\n" * 40


def packed(folder: Path, kind: str, data: bytes = PROSE) -> Path:
    path = folder / f"text.{kind}"
    if kind == "gz":
        path.write_bytes(gzip.compress(data, mtime=0))
    elif kind == "xz":
        path.write_bytes(lzma.compress(data))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("text", data)
    return path


@pytest.mark.parametrize("kind", ["gz", "xz", "zip"])
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_an_archive_that_is_cut_short(tmp_path, kind, share):
    path = packed(tmp_path, kind)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ValueError, match=f"{path} cannot be decompressed|the empty file {path}"):
        read_corpus(path)


def test_an_archive_of_several_files_or_behind_a_password(tmp_path):
    path = packed(tmp_path, "zip")
    encrypted = bytearray(path.read_bytes())
    for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.index(magic) + at] |= 1
    path.write_bytes(encrypted)
    with pytest.raises(ValueError, match=f"{path} cannot be decompressed .*encrypted"):
        read_corpus(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../evil", PROSE)
        archive.writestr("b", PROSE)
    with pytest.raises(ValueError, match=f"{path} cannot be decompressed .it holds 2 files"):
        read_corpus(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../evil", PROSE)
    assert read_corpus(path).data == PROSE  # read, not unpacked to a path
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["text.zip"]


DUMPS = {
    "malformed": b"<mediawiki><page></title></page>",
    "no UTF-8": b"<mediawiki><page><title>\xff</title></page>",
    "an unknown entity": b"<mediawiki><page><title>&evil;</title></page>",
    "nested": b"<mediawiki>" + b"<a>" * 5000 + b"</page>",
    "only a redirect": (
        b"<mediawiki><page><title>a</title><revision><text>#REDIRECT [[b]]</text></revision></page>"
    ),
}


@pytest.mark.parametrize("dump", DUMPS.values(), ids=DUMPS)
def test_a_dump_that_is_malformed(tmp_path, monkeypatch, dump):
    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=r"^expected (a MediaWiki|well-formed|articles)"):
        clean_dump(dump)


def test_entities_of_a_dump_are_not_written_out(tmp_path):
    (tmp_path / "secret").write_text("of this machine")
    laughs = b"".join(b"<!ENTITY a%d '%s'>" % (n, b"&a%d;" % (n - 1) * 20) for n in range(1, 12))
    outside = f"<!ENTITY x SYSTEM 'file://{tmp_path}/secret'>".encode()
    start = (
        b"<!DOCTYPE m [<!ENTITY a0 'ha'>"
        + laughs
        + outside
        + b"]><mediawiki><page><title>t</title><revision><text>"
    )
    end = b"</text></revision></page></mediawiki>"
    _, refusal = attempt(lambda: list(articles(start + b"&a11;" + end)))
    assert "expected well-formed XML" in str(refusal)
    assert list(articles(start + b"&x;" + end)) == [{"title": "t", "text": ""}]


TOKENIZERS = {
    "no JSON": {"tokenizer.json": b"{"},
    "merges of nothing": {
        "tokenizer.json": (
            b'{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":["x y"]}}'
        )
    },
    "a class of nowhere": {"tokenizer_config.json": b'{"tokenizer_class": "os.system"}'},
    "a model that is no model": {
        "tokenizer.model": b"\x00\x01",
        "tokenizer_config.json": b'{"tokenizer_class": "LlamaTokenizer"}',
    },
    "nested": {"tokenizer_config.json": b"[" * 100_000},
}


@pytest.mark.parametrize("files", TOKENIZERS.values(), ids=TOKENIZERS)
def test_a_tokenizer_that_is_malformed(tmp_path, files):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with pytest.raises(
        ValueError,
        match=f"the folder or hub name of a tokenizer that runs no code of its own, got '{folder}'",
    ):
        load_tokenizer(str(folder), for_encoder=False)
    with pytest.raises(ValueError, match="which does not load"):
        TextDataModule(tokenizer=str(folder))
