"""Files whose pickle would run code when it is read, put where a user would have them read."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hub_server import HubServer
from jobs import tiny_language_model
from small import random_tokens
from sweeping import Report, downloads_in, measure_tasks, settings

from repdyn import Probe, open_store
from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.local import find_checkpoints
from repdyn.checkpoints.options import Loading, SweepOptions
from repdyn.checkpoints.probes import text_probe
from repdyn.checkpoints.tasks import Task
from repdyn.checkpoints.weights import load_lightning, load_model
from repdyn.cli.train import TrainCLI
from repdyn.data.tokens import byte_tokenizer, encode, load_tokenizer
from repdyn.store import MeasurementKey

CODE = "contains code that would run when it is read"


class _Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.fixture
def marker(tmp_path: Path):
    """What must not exist at the end."""
    path = tmp_path / "the pickle ran"
    yield path
    assert not path.exists()


@pytest.fixture
def sweep_of(tmp_path: Path) -> Callable[[Path], Report]:
    def run(folder: Path) -> Report:
        probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
        tasks = [Task(target, probe) for target in find_checkpoints(folder, "run").targets]
        chosen = settings(loading=Loading(dtype="auto"))
        return measure_tasks(
            tasks, open_store(tmp_path / "store"), chosen, downloads_in(tmp_path / "downloads")
        )

    return run


def lightning_file(path: Path, **changes: object) -> Path:
    module = tiny_language_model()
    content = {
        "state_dict": module.state_dict(),
        "hyper_parameters": dict(module.hparams),
        "global_step": 8,
    }
    torch.save(content | changes, path)
    return path


def test_a_lightning_checkpoint(marker, sweep_of, tmp_path):
    path = lightning_file(tmp_path / "step8.ckpt", extra=_Touch(marker))
    with pytest.raises(CheckpointError, match=CODE):
        load_lightning(path)
    assert next(reason for _, reason in sweep_of(path).failed).endswith(
        f"a file is damaged, or {CODE}"
    )


def test_a_lightning_checkpoint_does_not_say_what_is_called_with_its_hyperparameters(tmp_path):
    parameters = dict(tiny_language_model().hparams)
    path = lightning_file(
        tmp_path / "last.ckpt",
        hyper_parameters=parameters
        | {"_instantiator": "os.system", "_class_path": "antigravity.X"},
    )
    assert type(load_lightning(path)).__name__ == "GPTNeoXForCausalLM"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hyper_parameters": {"hidden_size": 48}}, "weights of one LanguageModel"),
        ({"hyper_parameters": 5}, "does not load"),
        ({"state_dict": {}}, "28 of its 28 weights are not there"),
    ],
)
def test_a_lightning_checkpoint_that_is_not_what_it_says(tmp_path, changes, message):
    with pytest.raises(CheckpointError, match=message):
        load_lightning(lightning_file(tmp_path / "last.ckpt", **changes))


def test_a_training_that_is_resumed(marker, tmp_path, monkeypatch, capsys):
    path = lightning_file(tmp_path / "last.ckpt", extra=_Touch(marker))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py", "fit", "--ckpt_path", str(path)])
    with pytest.raises(SystemExit) as stop:
        TrainCLI()
    assert stop.value.code == 2
    assert "--weights_only false" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_probe(marker, tmp_path):
    path = tmp_path / "probe.safetensors"
    torch.save({"tokens": _Touch(marker)}, path)
    with pytest.raises(ValueError, match="expected a probe written by Probe.save, got "):
        Probe.load(path)


def test_a_store(marker, tmp_path):
    """Arrow's extension types of Python were pickles in the file's schema."""
    torch.save(_Touch(marker), tmp_path / "pickled")
    pickled = base64.b64encode((tmp_path / "pickled").read_bytes())
    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickled,
    }
    field = pa.field("run", pa.string(), metadata=metadata)
    path = tmp_path / "store" / "run" / "step000000008-p-m.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table([["run"]], schema=pa.schema([field])), path)
    with pytest.raises(ValueError, match="expected a store with measurements"):
        open_store(tmp_path / "store").to_pandas()
    assert MeasurementKey(run="run", step=8, probe="p", metrics="m") not in open_store(
        tmp_path / "store"
    )


def test_cached_token_ids(marker, tmp_path):
    """A file that holds something else is written anew."""
    encode(b"some text", byte_tokenizer(), tmp_path)
    (path,) = tmp_path.glob("*.npy")
    torch.save(_Touch(marker), path)
    assert bytes(encode(b"some text", byte_tokenizer(), tmp_path).tolist()) == b"some text"
    path.write_bytes(b"\x80\x04K\x01.")  # a bare pickle
    assert bytes(encode(b"some text", byte_tokenizer(), tmp_path).tolist()) == b"some text"
    assert not marker.exists()


@pytest.fixture
def tokenizer_with_code(tmp_path: Path, marker: Path) -> Path:
    """Its Python file would make the marker."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["own.Mine", null]}}'
    )
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w')\nclass Mine: pass\n")
    return folder


def test_code_of_a_tokenizer_is_not_run_and_not_asked_for(tokenizer_with_code, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(
        ValueError,
        match=r'expected "bytes", or the folder or hub name of a tokenizer that runs no code',
    ):
        load_tokenizer(str(tokenizer_with_code), for_encoder=False)


def test_code_of_a_tokenizer_is_not_run_in_a_sweep(tokenizer_with_code, family, monkeypatch):
    from transformers import AutoConfig

    monkeypatch.setattr("builtins.input", lambda *_: "y")
    config = AutoConfig.from_pretrained(family[8])
    with pytest.raises(
        CheckpointError, match="the tokenizer of m does not load: it needs Python code of its own"
    ):
        text_probe("m", tokenizer_with_code, config, SweepOptions(text="builtin"))


@pytest.mark.parametrize(
    "key", ["attn_implementation", "_attn_implementation", "experts_implementation"]
)
def test_compiled_code_of_another_repository_is_not_fetched(hub: HubServer, family, key):
    path = family[8] / "config.json"
    path.write_text(path.read_text().replace("{", f'{{"{key}": "lab/kernels",', 1))
    with pytest.raises(
        CheckpointError,
        match="it requires code of another repository, 'lab/kernels'; read that, then",
    ):
        load_model(family[8], Loading())
    assert hub.requests == []
