# ruff: noqa: F811  (fixtures that are imported)
from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from text_fixtures import cache, enwik8_prefix, make_dump, real_data  # noqa: F401  (fixtures)

from repdyn.probe import corpus as text
from repdyn.probe.corpus import Corpus, builtin_corpus, load_corpus, read_corpus
from repdyn.utils.files import cache_directory

PROSE = b"The quick brown fox jumps over the lazy dog.\n" * 50


def pack(data: bytes, path: Path) -> Path:
    match path.suffix:
        case ".gz":
            path.write_bytes(gzip.compress(data))
        case ".bz2":
            path.write_bytes(bz2.compress(data))
        case ".xz":
            path.write_bytes(lzma.compress(data))
        case ".zip":
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                # as macOS packs a folder
                archive.mkdir("folder")
                archive.writestr("folder/content", data)
                archive.writestr("__MACOSX/folder/._content", b"notes")
        case _:
            path.write_bytes(data)
    return path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("suffix", ["txt", "gz", "xz", "bz2", "zip"])
def test_compression_does_not_change_the_corpus(tmp_path: Path, suffix: str):
    corpus = read_corpus(pack(PROSE, tmp_path / f"fox.{suffix}"))
    assert corpus.data == PROSE
    assert corpus.sha256 == sha256(PROSE)
    assert corpus.name == f"fox.{suffix} (sha256 {sha256(PROSE)[:12]})"


@pytest.mark.parametrize(
    ("known_bytes", "name"),
    [
        (100_000_000, "enwik8"),
        (4_154_399, "enwik8 prefix, 4.15 MB"),
        (100_000, "enwik8 prefix, 0.10 MB"),
    ],
)
def test_a_known_checksum_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_bytes: int, name: str
):
    monkeypatch.setitem(text.ENWIK8_PREFIXES, sha256(PROSE), known_bytes)
    assert read_corpus(pack(PROSE, tmp_path / "misleading.txt")).name == name


def test_a_dump_with_another_checksum_is_not_called_enwik8(
    tmp_path: Path, make_dump: Callable[..., bytes]
):
    dump = make_dump({"A": "text"})
    assert (
        read_corpus(pack(dump, tmp_path / "enwik8")).name
        == f"not enwik8 (sha256 {sha256(dump)[:12]})"
    )


def test_names_of_heads():
    assert Corpus("enwik8", PROSE).head(100) == Corpus("enwik8 prefix, 0.00 MB", PROSE[:100])
    assert Corpus("fox", PROSE).head(100) == Corpus("fox, its first 100 bytes", PROSE[:100])
    whole = Corpus("fox", PROSE)
    assert whole.head(len(PROSE)) is whole


def test_the_builtin_text_is_english_and_reproducible():
    corpus = builtin_corpus()
    assert len(corpus.data) > 300_000
    assert corpus.data.count(b" the ") > 2000
    assert corpus == builtin_corpus()
    assert corpus.name.startswith("language reference of Python 3.")


def test_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path / "variable"))
    assert cache_directory() == tmp_path / "variable"
    monkeypatch.delenv("REPDYN_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "repdyn"


def test_plain_text_is_never_cleaned(tmp_path: Path):
    markup = b"[[not]] '''cleaned'''"
    assert load_corpus(pack(markup, tmp_path / "a.txt"), clean=True).data == markup


def test_a_dump_is_cleaned_by_default(tmp_path: Path, make_dump: Callable[..., bytes]):
    path = pack(make_dump({"Fox": "A '''fox'''."}), tmp_path / "dump.xml")
    assert load_corpus(path).data == b"Fox\n\nA fox.\n"
    assert load_corpus(path).name.endswith(", cleaned")
    assert load_corpus(path, clean=False).data == path.read_bytes()


def test_max_bytes_cuts_before_cleaning(tmp_path: Path, make_dump: Callable[..., bytes]):
    dump = make_dump({"Fox": "A '''fox'''.", "Dog": "A dog."})
    path = pack(dump, tmp_path / "dump.xml")
    assert load_corpus(path, max_bytes=dump.rfind(b"dog")).data == b"Fox\n\nA fox.\n"


@pytest.mark.real_data
def test_a_dataset_is_read_as_far_as_it_is_needed(tmp_path: Path):
    (tmp_path / "train.jsonl").write_text(
        "".join(f'{{"text": "Line {i}. ", "label": {i}}}\n' for i in range(100))
    )
    corpus = load_corpus(f"hf:{tmp_path}")
    assert corpus.data == "\n\n".join(f"Line {i}." for i in range(100)).encode()
    assert corpus.sha256[:12] in corpus.name
    assert load_corpus(f"hf:{tmp_path}", max_bytes=20).data == b"Line 0.\n\nLine 1.\n\nLi"
    for wrong, named in (
        (",column=label", "label"),
        (",split=test", "test"),
        (",colum=text", "colum"),
    ):
        with pytest.raises(ValueError, match=named):
            load_corpus(f"hf:{tmp_path}{wrong}")


def test_the_real_prefix_is_recognised(enwik8_prefix: Path):
    corpus = read_corpus(enwik8_prefix)
    assert corpus.name == "enwik8 prefix, 4.15 MB"
    assert corpus.sha256 == "d502ac7ecb9dd47a062e7d19b8dcd3c753b07c142e48b13dcd521cb747116bdd"
    assert len(corpus.data) == 4_154_399
    assert sha256(corpus.data[:1_000_000]) in text.ENWIK8_PREFIXES


def test_train_py_reads_all_its_options_before_it_starts(monkeypatch, capsys):
    """A default of the tracker that its parser refuses would stop every training."""
    from repdyn.cli.train import TrainCLI

    monkeypatch.setattr("sys.argv", ["train.py", "fit", "--tracker.max_overhead", "2"])
    with pytest.raises(SystemExit):
        TrainCLI()
    assert "tracker: expected max_overhead as a share" in capsys.readouterr().err


CUT = 5  # in the middle of its third letter
WORDS = "Съешь же ещё этих мягких французских булок, да выпей чаю. " * 400


@pytest.mark.parametrize(
    ("encoding", "named"),
    [
        ("utf-8", None),
        ("utf-8-sig", None),
        ("utf-16", None),
        ("utf-32", None),
        ("cp1251", "cp1251"),
        ("koi8-r", "koi8-r"),
        ("utf-16-be", "utf-16-be"),
    ],
)
def test_a_text_is_the_same_in_every_encoding(tmp_path: Path, encoding: str, named: str | None):
    path = pack(WORDS.encode(encoding), tmp_path / "words.txt.gz")
    corpus = load_corpus(path, encoding=named)
    assert corpus.text == WORDS
    assert corpus.data == WORDS.encode()
    assert load_corpus(path, encoding=named, max_bytes=CUT).text == WORDS[:2]


@pytest.mark.parametrize(
    ("data", "encoding", "words"),
    [
        (b"plain " * 20 + WORDS.encode("cp1251"), None, "UTF-8.* byte 120 .*cp1251.*encoding="),
        (WORDS.encode("utf-16-le"), None, "UTF-8"),
        (PROSE.decode().encode("utf-16-le"), None, "zero bytes"),
        (WORDS.encode("cp1251"), "ascii", "ascii"),
        (WORDS.encode(), "cyrillisch", "name of a text encoding"),
        (WORDS.encode(), "base64", "name of a text encoding"),
    ],
    ids=["cp1251", "UTF-16", "UTF-16 of ASCII", "another one", "unknown", "no encoding of text"],
)
def test_a_text_that_does_not_decode_is_refused(tmp_path: Path, data, encoding, words):
    """Replacement characters and zero bytes have a geometry too, of no text."""
    with pytest.raises(ValueError, match=words):
        load_corpus(pack(data, tmp_path / "words.txt"), encoding=encoding)


def test_a_file_that_ends_inside_a_character_is_text(tmp_path: Path):
    """As what `head -c` leaves of a file does."""
    path = pack(WORDS.encode()[:CUT], tmp_path / "words.txt")
    assert load_corpus(path).text == WORDS[:2]


def test_a_model_of_bytes_reads_the_bytes_of_a_file(tmp_path: Path):
    from repdyn.data.datamodule import TextDataModule

    data = bytes(range(256)) * 100
    path = pack(data, tmp_path / "words.bin")
    sizes = {"sequence_length": 32, "max_vectors": 64, "batch_vectors": 64}
    assert b"".join(map(bytes, TextDataModule(str(path), **sizes)._splits)) == data
    pack(WORDS.encode("cp1251"), path)
    named = TextDataModule(str(path), encoding="cp1251", **sizes)
    assert b"".join(map(bytes, named._splits)) == WORDS.encode()


def test_a_sweep_reads_its_text_in_the_encoding_that_is_named(save_model, tmp_path: Path):
    from repdyn import sweep

    folder = save_model("step1", "llama")
    pack(WORDS.encode("cp1251"), tmp_path / "words.txt")
    settings = {"quiet": True, "max_vectors": 256, "metrics": ["anisotropy"], "loss": False}
    with pytest.raises(ValueError, match=r"UTF-8.*encoding="):
        sweep(folder, text=str(tmp_path / "words.txt"), store=tmp_path / "refused", **settings)
    rows = {}
    for name in ("cp1251", "utf-8"):
        pack(WORDS.encode(name), tmp_path / "words.txt")
        settings |= {"text": str(tmp_path / "words.txt"), "encoding": name}
        rows[name] = sweep(folder, store=tmp_path / name, **settings).to_pandas()
    values = [table.query("layer.notna()").value for table in rows.values()]
    assert len(values[0]) > 2
    assert values[0].tolist() == values[1].tolist()
    with pytest.raises(ValueError, match="text=FILE"):
        sweep(folder, encoding="cp1251", store=tmp_path / "none", quiet=True)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.CSV", "a.tsv", "a.parquet"])
def test_records_are_no_text(tmp_path, name):
    """Their field names and braces would be measured as if they were text, without a word."""
    path = tmp_path / name
    table = pd.DataFrame({"id": ["1", "2"], "content": ["one of them", "two of them"]})
    match path.suffix.lower():
        case ".parquet":
            table.to_parquet(path)
        case ".csv" | ".tsv":
            table.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
        case _:
            table.to_json(path, orient="records", lines=True)
    with pytest.raises(ValueError, match="records") as refused:
        load_corpus(path)
    # what the message suggests works as printed
    suggested = str(refused.value).split("'")[1]
    assert suggested.endswith("column=content")
    assert load_corpus(suggested).data == b"one of them\n\ntwo of them"


def test_archives_and_documents_are_no_text(tmp_path):
    """They were said to be in another encoding, and read in latin-1 they were measured."""
    path = tmp_path / "texts.txt.zst"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match=r"unpack it"):
        load_corpus(path)


def test_lines_end_alike_on_windows(tmp_path):
    """The same text gave other tokens where git had checked it out on Windows; bytes are kept."""
    path = tmp_path / "texts.txt"
    path.write_bytes(b"one\r\ntwo\r\n")
    assert load_corpus(path).data == b"one\ntwo\n"
    assert load_corpus(path, as_bytes=True).data == b"one\r\ntwo\r\n"
