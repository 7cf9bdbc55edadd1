"""Input embeddings read by ranges from each format of weights."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from repdyn.checkpoints.embeddings import MAX_ROWS, read_embeddings
from repdyn.checkpoints.errors import CheckpointError


class Ranges:
    """A file that is read by ranges, and how much of it was."""

    def __init__(self, path: Path) -> None:
        self.content, self.n_read, self.name = path.read_bytes(), 0, path.name

    def read(self):
        return read_embeddings(self.name, self.fetch, len(self.content))

    def fetch(self, start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(self.content)
        self.n_read += stop - start
        return self.content[start:stop]


def tensors(rows=2000, dim=64, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(800, 256, generator=generator) for name in ("layers.0.a.weight", "layers.1.a.weight")}
    return {**weights, "model.embed_tokens.weight": torch.randn(rows, dim, generator=generator).to(dtype)}


def save(tmp_path: Path, form: str, content) -> Ranges:
    path = tmp_path / ("model.safetensors" if form == "safetensors" else "pytorch_model.bin")
    save_file(content, path) if form == "safetensors" else torch.save(content, path)
    return Ranges(path)


@pytest.mark.parametrize("form", ["safetensors", "zip"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_the_rows_in_the_middle_of_the_vocabulary(form, dtype, tmp_path):
    content = tensors(dtype=dtype)
    file = save(tmp_path, form, content)
    found = file.read()
    first = (2000 - MAX_ROWS) // 2
    assert torch.equal(found, content["model.embed_tokens.weight"][first : first + MAX_ROWS].float())
    assert file.n_read < len(file.content) / 4


@pytest.mark.parametrize("form", ["safetensors", "zip"])
def test_a_small_vocabulary_is_read_whole(form, tmp_path):
    content = tensors(rows=7)
    assert torch.equal(save(tmp_path, form, content).read(), content["model.embed_tokens.weight"])


@pytest.mark.parametrize("name", ["gpt_neox.embed_in.weight", "wte.weight", "bert.embeddings.word_embeddings.weight"])
def test_names_of_embeddings(name, tmp_path):
    assert save(tmp_path, "safetensors", {name: torch.ones(3, 2), "other.weight": torch.ones(5, 2)}).read().shape == (
        3,
        2,
    )


def test_a_file_without_embeddings(tmp_path):
    assert save(tmp_path, "safetensors", {"layers.0.weight": torch.ones(3, 2)}).read() is None
    assert save(tmp_path, "zip", {"layers.0.weight": torch.ones(3, 2)}).read() is None


def test_parts_of_a_storage(tmp_path):
    whole = torch.randn(40, 8)
    assert torch.equal(save(tmp_path, "zip", {"wte.weight": whole[10:20]}).read(), whole[10:20])
    with pytest.raises(CheckpointError, match="another type, in another order, or compressed"):
        save(tmp_path, "zip", {"wte.weight": whole.T}).read()


def test_parameters_and_other_objects(tmp_path):
    weight = torch.nn.Parameter(torch.randn(4, 3))
    file = save(tmp_path, "zip", {"wte.weight": weight, "sizes": torch.Size([1]), "step": 3})
    assert torch.equal(file.read(), weight)


def zip_with(tmp_path: Path, data: bytes) -> Ranges:
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
    return Ranges(path)


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_of_a_pickle_is_executed(tmp_path):
    assert zip_with(tmp_path, pickle.dumps({"wte.weight": Touch(tmp_path / "executed")})).read() is None
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"garbage", pickle.dumps([1])[:-1], b"\x80\x02r\xff\xff\xff\xff.", b"\x80\x02(lp0\nh\x07."],
)
def test_damaged_pickles(data, tmp_path):
    with pytest.raises(CheckpointError, match=r"the places of the tensors in pytorch_model\.bin cannot be read"):
        zip_with(tmp_path, data).read()


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 64, (8).to_bytes(8, "little") + b"[1, 2, 3", (4).to_bytes(8, "little") + b"null"],
)
def test_damaged_headers(content, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"the places of the tensors in model\.safetensors cannot be read"):
        Ranges(path).read()


@pytest.mark.parametrize("shape", [[3000, 64], [-1, 64], [0, 64]])
def test_embeddings_that_the_file_does_not_hold(shape, tmp_path):
    header = b'{"wte.weight": {"dtype": "F32", "shape": %s, "data_offsets": [0, 64]}}' % str(shape).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    with pytest.raises(CheckpointError, match="that it does not hold"):
        Ranges(path).read()
