"""What the README prints is what works."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import gguf
import pytest
import torch
from gguf_files import write_gguf
from jobs import Job, batches, tiny_language_model
from jobs import trainer as lightning_trainer
from small import HandWritten, random_tokens
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, Trainer, TrainingArguments

import repdyn
from repdyn import Store, open_store
from repdyn.callbacks import HuggingFaceTracker, RepresentationDynamics
from repdyn.cli.main import main
from repdyn.metrics import METRICS
from repdyn.models import build_model

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def block(name: str) -> str:
    match = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```\n<!-- /{name} -->", README, re.DOTALL)
    assert match, name
    return match[1]


def test_readme_is_short():
    assert README.count("\n") <= 120


def test_it_names_extras_that_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of_rows = re.findall(r"^\| [^|]+ \| .+ \| (`[^|]+`) \|$", README, re.MULTILINE)
    named = {name for cell in of_rows for name in re.findall(r"`(\w+)`", cell)}
    named |= set(re.findall(r"^repdyn .*# \[(\w+)\]", README, re.MULTILINE))
    assert named >= {"hf", "lab", "lightning", "query", "sweep", "train", "views", "watch"}
    assert named <= set(project["optional-dependencies"])


def test_example_runs_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,
    }
    model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=100, **sizes))
    names = {
        "held_out": torch.randint(100, (256, 32)),
        "model": model,
        "batches": range(10),
        "train_step": lambda model, batch: torch.tensor(1.0 / (1 + batch)),
    }
    exec(compile(block("example"), "README.md", "exec"), names)
    assert open_store("runs/mine").steps("mine") == [0, 10]
    assert "mine  GPTNeoXForCausalLM (decoder)" in capsys.readouterr().out
    assert Path("runs/mine/report.html").exists()
    index = (ROOT / "docs" / "index.md").read_text()
    assert block("example") in index


ROWS = dict(re.findall(r"^\| ([^|]+) \| `(.+)` \| [^|]+ \|$", README, re.MULTILINE))
"""What the table of the README has one write, by what one has."""


@pytest.fixture
def in_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_row_of_the_table_is_run_by_a_test():
    assert set(ROWS) == {
        "a LightningModule",
        "a Trainer of transformers",
        "a script with a Trainer, unchanged",
        "embeddings",
        "a folder of checkpoints",
        "a model on the hub",
        "a GGUF file",
        "checkpoints of my own class",
    }


def written(row: str, **names: object) -> object:
    """Run what a row has one write, and return its last value."""
    *before, last = ROWS[row].split("; ")
    exec("\n".join(before), names)
    return eval(last, names)


@pytest.mark.usefixtures("without_figures")
def test_a_lightning_module_is_tracked_as_printed(in_folder):
    attached = RepresentationDynamics()

    def trainer(callbacks):
        return lightning_trainer(in_folder, *callbacks, max_steps=2)

    names = {"Trainer": trainer, "RepresentationDynamics": lambda: attached}
    written("a LightningModule", **names, module=Job(), train=batches(), validation=batches())
    assert attached.store.steps("job/0") == [0, 1, 2]


@pytest.mark.usefixtures("without_figures")
def test_a_trainer_of_transformers_is_tracked_as_printed(in_folder):
    tokens = random_tokens(24, 12, seed=1)
    names = {
        "Trainer": Trainer,
        "HuggingFaceTracker": HuggingFaceTracker,
        "model": tiny_language_model("llama").model,
        "arguments": TrainingArguments("out", max_steps=2, report_to="none", use_cpu=True),
        "data": [{"input_ids": row, "labels": row} for row in tokens],
    }
    written("a Trainer of transformers", **names)
    assert open_store("out/repdyn").steps("out") == [0, 1, 2]


SCRIPT = """
from jobs import tiny_language_model
from small import random_tokens
from transformers import Trainer, TrainingArguments

rows = [{"input_ids": row, "labels": row} for row in random_tokens(24, 12)]
arguments = TrainingArguments("out", max_steps=2, report_to="none", use_cpu=True)
Trainer(tiny_language_model("llama").model, arguments, train_dataset=rows).train()
"""


@pytest.mark.process
def test_a_script_is_tracked_as_printed(in_folder):
    (in_folder / "train.py").write_text(SCRIPT)
    command = shlex.split(ROWS["a script with a Trainer, unchanged"])[1:]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-m", "repdyn", *command], check=True, env=environment)
    assert open_store("out/repdyn").steps("out") == [0, 1, 2]


def test_embeddings_have_a_dimension_as_printed():
    embeddings = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    assert 2 < written("embeddings", repdyn=repdyn, embeddings=embeddings) < 4


def swept(row: str, *options: str) -> Store:
    """Run a sweep as printed, which succeeds, and return its store."""
    main([*shlex.split(ROWS[row])[1:], *options])
    # beside the checkpoints, or in the folder sweeps
    (probes,) = Path().rglob("probes")
    return open_store(probes.parent)


def test_a_folder_of_checkpoints_is_swept_as_printed(in_folder, save_family, quick_images):
    save_family(in_folder / "checkpoints", (0, 8))
    store = swept("a folder of checkpoints", "--text", "builtin")
    assert store.steps(f"{in_folder.name}/checkpoints") == [0, 8]


def test_a_model_on_the_hub_is_swept_as_printed(in_folder, family, hub, quick_images):
    name = "EleutherAI/pythia-70m"
    for step, folder in family.items():
        hub.publish(name, f"step{step}", folder)
    assert swept("a model on the hub", "--text", "builtin").steps(name) == [0, 8, 16]


def test_a_gguf_file_is_swept_as_printed(in_folder, small_probe, quick_images):
    sizes = {"vocab_size": 64, "hidden_size": 64, "n_layers": 3, "n_heads": 2, "context_length": 64}
    write_gguf(build_model("llama", **sizes), "model.gguf", gguf.GGMLQuantizationType.Q8_0)
    small_probe.save("probe.safetensors")
    assert set(swept("a GGUF file").to_pandas()["weights_kind"]) == {"Q8_0"}


def test_checkpoints_of_ones_own_class_are_swept_as_printed(in_folder, small_probe, quick_images):
    for step in (0, 5):
        torch.save(HandWritten().state_dict(), f"{step}.ckpt")

    def load(path):
        model = HandWritten()
        model.load_state_dict(torch.load(path))
        return model

    names = {"repdyn": repdyn, "load": load, "steps": (0, 5), "probe": small_probe}
    done = written("checkpoints of my own class", **names)
    assert not done.failures
    assert sorted(set(done.to_pandas()["step"])) == [0, 5]


def test_links_and_figures_exist():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_each_of_the_two_commands_is_one_line():
    for name in ("run", "tests"):
        command = block(name)
        assert command.count("\n") == 1
        assert "-c constraints.txt" in command


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="the script is bash")
def test_ci_calls_the_command_as_printed():
    script = (ROOT / ".ci" / "run").read_text()
    extract = next(line for line in script.splitlines() if line.startswith("command="))
    printed = subprocess.run(
        ["bash", "-c", f'{extract}; printf "%s\\n" "$command"'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == block("tests")


def test_findings_page_states_the_criteria_of_the_code():
    from repdyn.views.judging import findings

    page = " ".join((ROOT / "docs" / "findings.md").read_text().replace("*", "").split())
    stated = (findings.BELL, findings.UNIFORM, findings.GROWTH, findings.DIMENSION)
    for meaning, criterion in zip(findings.MEANINGS.values(), stated, strict=True):
        title, _, kind = meaning.removesuffix(")").partition(" (")
        start = page.lower().index(f"{title} (published for {kind}")
        assert start < page.index(criterion) < start + 100
    assert f"Version {findings.VERSION}: committed before" in page
    assert f"more than {findings.FAILED:.0%} above the lowest" in page


def test_the_number_of_metrics_is_that_of_the_table():
    assert f"{len(METRICS)} in all" in README
