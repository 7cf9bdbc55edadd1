"""Trackio, with its real local database, and trainings without Lightning that log to each kind of
run.
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("trackio")

WITHOUT_LIGHTNING = """
import sys
# importing one raises
sys.modules |= dict.fromkeys(("lightning", "pytorch_lightning", "torchmetrics"))
import torch, wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, Trainer, TrainingArguments
from repdyn import Probe
from repdyn.callbacks import HuggingFaceTracker
ids = torch.randint(64, (32, 16), generator=torch.Generator().manual_seed(0))
kinds = ["trackio", "tensorboard", "wandb"]
evaluating = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 2, "use_cpu": True}
arguments = TrainingArguments("out", max_steps=4, report_to=kinds, run_name="mine", **evaluating)
sizes = {"hidden_size": 16, "intermediate_size": 32}
numbers = {"num_hidden_layers": 2, "num_attention_heads": 2}
model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=64, **sizes, **numbers))
probe = Probe.from_tokens(ids, max_vectors=64)
tracker = HuggingFaceTracker(probe, schedule=2, report=False, on_error="raise")
data = [{"input_ids": x, "labels": x} for x in ids]
Trainer(model, arguments, train_dataset=data, eval_dataset=data[:4], callbacks=[tracker]).train()
assert wandb.run.summary["two_nn/mean"] > 0
events = EventAccumulator("out/runs/repdyn").Reload()
assert [event.step for event in events.Scalars("two_nn/mean")] == [0, 2, 4], events.Tags()
"""
WITH_LIGHTNING = """
from pathlib import Path
from jobs import Job, batches, tracker, trainer
from small import random_tokens
from repdyn import Probe
from repdyn.views.publish.trackio import TrackioLogger
probe = Probe.from_tokens(random_tokens(32, 12), max_vectors=64)
live = tracker(probe, 2, report=False, store="store")
logger = TrackioLogger("huggingface", "mine")
trainer(Path("."), live, logger=logger, max_steps=4).fit(Job(), batches())
"""
EXPORT = """
from pathlib import Path
from synthetic_runs import fill, make_rows
from repdyn.views.publish.export import export_store
store = fill(Path("store"), make_rows(steps=(0, 8), n_blocks=2))
print(*export_store(store, to=["trackio"], project="huggingface"))
"""
READ = """
import json
from trackio.sqlite_storage import SQLiteStorage
(run,) = SQLiteStorage.get_runs("huggingface")
print(json.dumps(SQLiteStorage.get_logs("huggingface", run)))
"""


@pytest.mark.parametrize(
    ("job", "steps"),
    [(WITHOUT_LIGHTNING, [0, 2, 4]), (WITH_LIGHTNING, [0, 2, 4]), (EXPORT, [0, 8])],
)
def test_trackio_has_the_values_of_each_step(job, steps, tmp_path):
    """It knew no logger of Lightning; and a Hugging Face training without Lightning logged nothing
    anywhere.
    """
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "db"), "WANDB_MODE": "offline"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    for code in (job, READ):
        command = [sys.executable, "-c", code]
        run = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
        )
        assert run.returncode == 0, run.stderr
    logs = json.loads(run.stdout.splitlines()[-1])
    values = [log for log in logs if "two_nn/mean" in log]
    assert [log["repdyn/step"] for log in values] == steps
    if job == WITHOUT_LIGHTNING:  # where both losses come after the measurement of their step
        assert all({"repdyn/loss", "repdyn/val_loss"} <= set(log) for log in values[1:])
    else:
        assert [log["step"] for log in values] == steps
    assert any("figures/heatmap_two_nn_all" in log for log in logs)
