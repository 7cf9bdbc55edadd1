"""Live trackers of a model with learned vectors before its tokens: the numbers of a measurement, and a choice of their own."""

from __future__ import annotations

import pytest
import torch
from jobs import Job, batches, tiny_language_model, tracker, trainer
from small import HandWritten
from transformers import Trainer, TrainingArguments

from repdyn import Tracker, measure, open_store
from repdyn.callbacks import HuggingFaceTracker


class WithMeta(HandWritten):
    """Puts two learned vectors before the tokens."""

    def __init__(self):
        super().__init__()
        self.meta = torch.nn.Parameter(torch.randn(2, 16))

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        x = torch.cat([self.meta.expand(len(x), -1, -1), x], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))[:, 2:]


def values(rows):
    return {(row.layer, row.subset): row.value for row in rows}


def stored(store, step):
    frame = store.to_pandas()
    frame = frame[(frame["step"] == step) & frame["layer"].notna()]
    return frame.set_index(["layer", "subset"])["value"].to_dict(), set(frame["layers"])


def test_lightning(tmp_path, probe):
    job = Job()
    job.network = WithMeta()
    attached = tracker(probe, metrics=["anisotropy"], token_positions=slice(2, None))
    trainer(tmp_path, attached, max_steps=4).fit(job, batches())
    expected = values(measure(job, probe, ["anisotropy"], token_positions=slice(2, None)).rows)
    assert stored(attached.store, 4) == (expected, {'{"layers": null, "token_positions": "2:"}'})


def test_lightning_with_a_tuned_prompt(tmp_path, probe):
    peft = pytest.importorskip("peft")
    job = tiny_language_model("llama")
    job.model = peft.get_peft_model(job.model, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with pytest.raises(ValueError, match=r"leave their positions out with token_positions=slice\(3, None\)"):
        trainer(tmp_path / "refused", tracker(probe), max_steps=2).fit(job, batches())
    attached = tracker(probe, metrics=["anisotropy"], token_positions=slice(3, None))
    trainer(tmp_path / "job", attached, max_steps=2).fit(job, batches())
    expected = values(measure(job.model, probe, ["anisotropy"], token_positions=slice(3, None)).rows)
    assert stored(attached.store, 2)[0] == expected


def test_hugging_face_trainer(tmp_path, probe):
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(tiny_language_model("llama").model, config)
    attached = HuggingFaceTracker(
        probe, 2, ["anisotropy"], on_error="raise", token_positions=slice(3, None), run="prompted"
    )
    settings = {"max_steps": 2, "report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    data = [{"input_ids": row, "labels": row} for row in probe.tokens.view(-1, 12)]
    Trainer(model, TrainingArguments(str(tmp_path), **settings), train_dataset=data, callbacks=[attached]).train()
    expected = values(measure(model, probe, ["anisotropy"], token_positions=slice(3, None)).rows)
    assert stored(attached.store, 2)[0] == expected


def test_a_loop_of_ones_own(tmp_path, probe):
    model = WithMeta()
    with Tracker(
        model, probe, 1, ["anisotropy"], store=tmp_path, on_error="raise", token_positions=slice(2, None)
    ) as attached:
        attached.step()
    expected = values(measure(model, probe, ["anisotropy"], token_positions=slice(2, None)).rows)
    assert stored(open_store(tmp_path), 1)[0] == expected
    with pytest.raises(ValueError, match="expected token_positions= to be a slice"):
        Tracker(model, probe, store=tmp_path, token_positions=2)
