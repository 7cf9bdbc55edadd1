"""Example scripts of other projects, unchanged, with and without ``repdyn attach``.

``REPDYN_EXAMPLES`` names a folder with checkouts of their repositories, of which no line is kept
here: ``git clone --depth 1`` of transformers (``--branch`` with the release that is installed),
pytorch-lightning and sentence-transformers. A test whose script or package is not there is skipped;
that of TRL runs what is installed. Models and data are tiny and made here.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, ViTConfig

from repdyn import open_store
from repdyn.data.tokens import byte_tokenizer

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[3]
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
OF_THE_TRAINER = [
    "--do_train",
    "--do_eval",
    "--eval_strategy",
    "steps",
    "--eval_steps",
    "4",
    "--max_steps",
    "8",
    "--logging_steps",
    "1",
    "--per_device_train_batch_size",
    "8",
    "--report_to",
    "none",
    "--use_cpu",
    "--output_dir",
    "output",
]
# an accuracy of evaluate, which would be fetched from the hub
ACCURACY = """
import datasets
import evaluate

class Accuracy(evaluate.Metric):
    def _info(self):
        integers = {name: datasets.Value("int32") for name in ("predictions", "references")}
        return evaluate.MetricInfo("", "", features=datasets.Features(integers))

    def _compute(self, predictions, references):
        same = [one == other for one, other in zip(predictions, references)]
        return {"accuracy": sum(same) / len(same)}
"""


def example(path: str) -> Path:
    """Return a script of the checkouts; skip where it is not there."""
    folder = os.environ.get("REPDYN_EXAMPLES")
    if folder is None:
        pytest.skip("REPDYN_EXAMPLES names no folder of checkouts")
    script = Path(folder) / path
    if not script.exists():
        pytest.skip(f"no {script}")
    return script


def run(folder: Path, command: Sequence[str | Path], *, attaches: bool, **variables: str) -> str:
    """Run a script in a folder, with the tracker or without, and return what it printed."""
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(folder / "cache"),
        "HF_MODULES_CACHE": str(folder / "modules"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "REPDYN_SCHEDULE": "4",
        "REPDYN_STORE": str(folder / "store"),
        **variables,
    }
    launcher = ["-m", "repdyn", "attach"] if attaches else []
    done = subprocess.run(
        [sys.executable, *launcher, *map(str, command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def run_twice(
    tmp_path: Path,
    prepare: Callable[[Path], Sequence[str | Path]],
    steps: Sequence[int] = (0, 4, 8),
    **variables: str,
) -> tuple[Any, str]:
    """Run a script without and with the tracker, and check that losses and weights are the same.

    Args:
        prepare: writes models and data to a folder, and returns the command to run there.

    Returns:
        The rows of layers, and what was printed.
    """
    results = []
    for name in ("plain", "tracked"):
        folder = tmp_path / name
        folder.mkdir()
        command = prepare(folder)
        printed = run(folder, command, attaches=name == "tracked", **variables)
        results.append((losses_in(folder), weights_in(folder)))
    (plain_losses, plain), (losses, tracked) = results
    assert losses, "the script has logged no loss"
    assert plain_losses == losses
    assert plain.keys() == tracked.keys()
    assert all(torch.equal(weight, tracked[name]) for name, weight in plain.items())
    frame = open_store(folder / "store").to_pandas()
    frame = frame[frame["layer"].notna()]
    assert sorted(frame["step"].unique()) == list(steps)
    # few bytes in few contexts: the dimension of an untrained encoder may have no value
    above = frame.query("layer > 0")
    assert above["value"].notna().mean() >= 0.5
    assert above.query("metric == 'anisotropy'")["value"].notna().all()
    assert "repdyn: measured on" in printed
    # those of several stacks lie in a folder each
    pictures = {path.name for path in (folder / "store" / "figures").rglob("*.png")}
    assert pictures >= {
        "mean_over_layers.png",
        "profile_anisotropy.png",
        "heatmap_anisotropy_all.png",
    }
    assert (folder / "store" / "report.html").exists()
    return frame, printed


def losses_in(folder: Path) -> list[float]:
    """Return the losses that the Trainer logged, or those that Lightning logged to TensorBoard."""
    states = sorted(folder.rglob("trainer_state.json"), key=lambda path: path.stat().st_mtime)
    for path in states[-1:]:
        logged = json.loads(path.read_text())["log_history"]
        return [values["loss"] for values in logged if "loss" in values]
    losses = []
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        events = EventAccumulator(str(path)).Reload()
        for name in sorted(set(events.Tags()["scalars"]) & {"train_loss", "val_loss", "test_loss"}):
            losses += [event.value for event in events.Scalars(name)]
    return losses


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights that a script saved last."""
    saved = [*folder.rglob("*.safetensors"), *folder.rglob("*.ckpt")]
    saved = [path for path in saved if "store" not in path.parts]
    newest = max(saved, key=lambda path: path.stat().st_mtime)
    if newest.suffix == ".ckpt":
        return torch.load(newest, weights_only=False)["state_dict"]
    return load_file(newest)


def write_texts(folder: Path) -> None:
    """Write source text of Python for a training and for its validation."""
    (folder / "train.txt").write_text(inspect.getsource(random))
    (folder / "valid.txt").write_text(inspect.getsource(inspect)[:40_000])


def test_run_clm(tmp_path):
    script = example("transformers/examples/pytorch/language-modeling/run_clm.py")
    pytest.importorskip("evaluate")

    def prepare(folder: Path) -> list[str | Path]:
        write_texts(folder)
        byte_tokenizer().save_pretrained(folder / "tokenizer")
        (folder / "accuracy").mkdir()
        (folder / "accuracy" / "accuracy.py").write_text(ACCURACY)
        sizes = "n_embd=32,n_layer=2,n_head=2,n_positions=128,vocab_size=300"
        return [
            *(script, "--model_type", "gpt2", "--config_overrides", sizes),
            *("--tokenizer_name", "tokenizer", "--block_size", "64"),
            *("--train_file", "train.txt", "--validation_file", "valid.txt", *OF_THE_TRAINER),
        ]

    frame, printed = run_twice(tmp_path, prepare)
    assert set(frame["causal"]) == {True}
    assert "measured on eval_dataset" in printed


def test_run_mlm(tmp_path):
    script = example("transformers/examples/pytorch/language-modeling/run_mlm.py")
    pytest.importorskip("evaluate")

    def prepare(folder: Path) -> list[str | Path]:
        write_texts(folder)
        save_encoder(folder / "encoder")
        (folder / "accuracy").mkdir()
        (folder / "accuracy" / "accuracy.py").write_text(ACCURACY)
        return [
            *(script, "--config_name", "encoder", "--tokenizer_name", "encoder"),
            *("--max_seq_length", "64"),
            *("--train_file", "train.txt", "--validation_file", "valid.txt", *OF_THE_TRAINER),
        ]

    frame, _ = run_twice(tmp_path, prepare)
    assert set(frame["causal"]) == {False}


@pytest.mark.parametrize("kind", ["transformers", "timm"])
def test_image_classification(tmp_path, kind):
    script = example(
        "transformers/examples/pytorch/image-classification/run_image_classification.py"
    )
    pytest.importorskip("evaluate")
    pytest.importorskip("torchvision", exc_type=ImportError)
    if kind == "timm":
        pytest.importorskip("timm", exc_type=ImportError)

    def prepare(folder: Path) -> list[str | Path]:
        write_images(folder / "images")
        save_classifier(folder / "classifier", kind)
        (folder / "accuracy").mkdir()
        (folder / "accuracy" / "accuracy.py").write_text(ACCURACY)
        return [
            *(script, "--model_name_or_path", "classifier", "--ignore_mismatched_sizes"),
            *("--train_dir", "images", "--train_val_split", "0.5", "--remove_unused_columns"),
            *("False", "--dataloader_num_workers", "0", *OF_THE_TRAINER),
        ]

    frame, _ = run_twice(tmp_path, prepare)
    assert set(frame["design"]) == {"images"}


def write_images(folder: Path) -> None:
    """Write small images of two classes, as a folder each."""
    image = pytest.importorskip("PIL.Image")
    generator = torch.Generator().manual_seed(0)
    for kind in ("one", "other"):
        (folder / kind).mkdir(parents=True)
        for number in range(64):
            pixels = torch.randint(256, (32, 32, 3), generator=generator, dtype=torch.uint8)
            image.fromarray(pixels.numpy()).save(folder / kind / f"{number}.png")


def save_classifier(folder: Path, kind: str) -> None:
    """Save a small vision transformer of transformers, or one of timm as these wrap it."""
    from transformers import (
        TimmWrapperConfig,
        TimmWrapperForImageClassification,
        ViTForImageClassification,
        ViTImageProcessor,
    )

    torch.manual_seed(0)
    if kind == "transformers":
        model = ViTForImageClassification(ViTConfig(**SIZES, image_size=32, patch_size=8))
        ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    else:
        of_timm = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
        config = TimmWrapperConfig(
            architecture="vit_tiny_patch16_224", num_labels=2, model_args=of_timm
        )
        model = TimmWrapperForImageClassification(config)
        model.config.pretrained_cfg = {"input_size": [3, 32, 32], "mean": [0.5] * 3}
        model.config.pretrained_cfg |= {"std": [0.5] * 3, "interpolation": "bicubic"}
    model.save_pretrained(folder)


def save_encoder(folder: Path) -> None:
    """Save a small BERT of bytes, with its tokenizer."""
    tokenizer = byte_tokenizer(for_encoder=True)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    BertModel(BertConfig(**SIZES, vocab_size=len(tokenizer))).save_pretrained(folder)


def test_transformer_of_lightning(tmp_path):
    """An encoder and a decoder of torch, and a forward that requires the targets."""
    script = example("pytorch-lightning/examples/pytorch/basics/transformer.py")
    pytest.importorskip("lightning")

    def prepare(folder: Path) -> list[str | Path]:
        words = [f"w{number}" for number in range(2_000)]
        draw = random.Random(0)
        lines = (" ".join(draw.choices(words, k=34)) for _ in range(4_200))
        (folder / "data").mkdir()
        (folder / "data" / "wikitext-2.txt").write_text("\n".join(lines))
        return [script]

    frame, printed = run_twice(
        tmp_path,
        prepare,
        PL_TRAINER_MAX_STEPS="8",
        PL_TRAINER_LIMIT_VAL_BATCHES="2",
        PL_TRAINER_LIMIT_TEST_BATCHES="2",
        PL_TRAINER_ACCELERATOR="cpu",
    )
    assert set(frame["stack"]) == {"encoder", "decoder"}
    assert "measured on the validation data" in printed


@pytest.mark.parametrize("name", ["autoencoder", "backbone_image_classifier"])
def test_networks_of_lightning_without_blocks(tmp_path, name):
    """Two linear layers are no stack of blocks, which is said before the first step."""
    script = example(f"pytorch-lightning/examples/pytorch/basics/{name}.py")
    pytest.importorskip("torchvision", exc_type=ImportError)
    folder = tmp_path / "examples" / "pytorch" / "basics"
    folder.mkdir(parents=True)
    shutil.copy(script, folder)
    data = tmp_path / "examples" / "Datasets" / "MNIST" / "complete"
    data.mkdir(parents=True)
    for split, n in (("training", 60_000), ("test", 64)):
        images = torch.zeros(n, 28, 28, dtype=torch.uint8)
        torch.save((images, torch.zeros(n, dtype=torch.int64)), data / f"{split}.pt")
    with pytest.raises(AssertionError) as refused:
        run(folder, [folder / script.name], attaches=True, PL_USE_MOCKED_MNIST="1")
    assert "repdyn.torchmetrics" in str(refused.value)


def test_sentence_transformers(tmp_path):
    script = example(
        "sentence-transformers/examples/sentence_transformer/training/other/"
        "training_batch_hard_trec.py"
    )
    pytest.importorskip("sentence_transformers")

    def prepare(folder: Path) -> list[str | Path]:
        save_encoder(folder / "sentence-transformers" / "all-distilroberta-v1")
        (folder / "omkar334" / "trec").mkdir(parents=True)
        texts = [line.strip() for line in inspect.getsource(argparse).splitlines() if line.strip()]
        for split, chosen in (("train", texts[:760]), ("test", texts[760:800])):
            rows = [
                {"text": text, "coarse_label": 0, "fine_label": number % 4}
                for number, text in enumerate(chosen)
            ]
            lines = "\n".join(map(json.dumps, rows))
            (folder / "omkar334" / "trec" / f"{split}.jsonl").write_text(lines)
        return [script]

    frame, printed = run_twice(tmp_path, prepare, steps=(0, 4, 8))
    assert set(frame["causal"]) == {False}
    assert "measured on train_dataset, as there is no eval_dataset" in printed


def test_sft_of_trl(tmp_path):
    """The script that TRL installs, run as a module."""
    pytest.importorskip("trl.scripts.sft")

    def prepare(folder: Path) -> list[str | Path]:
        tokenizer = byte_tokenizer()
        tokenizer.add_special_tokens({"eos_token": "</s>", "pad_token": "<pad>"})
        tokenizer.save_pretrained(folder / "decoder")
        ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        torch.manual_seed(0)
        config = LlamaConfig(**SIZES, vocab_size=len(tokenizer), **ids)
        LlamaForCausalLM(config).save_pretrained(folder / "decoder")
        (folder / "data").mkdir()
        for split in ("train", "test"):
            rows = [{"text": f"{split} {number} " * 20} for number in range(64)]
            lines = "\n".join(map(json.dumps, rows))
            (folder / "data" / f"{split}.jsonl").write_text(lines)
        return [
            *("-m", "trl.scripts.sft", "--model_name_or_path", "decoder"),
            *("--dataset_name", "data", "--max_length", "64", "--max_steps", "8"),
            *("--eval_strategy", "steps", "--eval_steps", "4", "--logging_steps", "1"),
            *("--report_to", "none", "--use_cpu", "--bf16", "False", "--output_dir", "output"),
        ]

    frame, printed = run_twice(tmp_path, prepare)
    assert set(frame["causal"]) == {True}
    assert "measured on eval_dataset" in printed


def test_a_loop_of_its_own_is_told_what_to_write(tmp_path):
    """Nothing is attached to it, which must not pass for a measurement."""
    (tmp_path / "loop.py").write_text("import sys\nprint(sys.argv[1:])\n")
    printed = run(tmp_path, ["loop.py", "--lr", "1"], attaches=True)
    assert "['--lr', '1']" in printed
    assert "nothing was measured" in printed
