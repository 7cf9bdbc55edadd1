"""Jobs of other shapes: several models, several optimizers, loops that stop, skip and look
aside.
"""

import pandas as pd
import pytest
import torch
from jobs import Job, batches, tracker, trainer
from small import HandWritten

from repdyn.tracking.scalars import add_tokens


def test_tokens_of_a_batch_that_does_not_show_them(tmp_path, probe):
    class Tuples(Job):
        def training_step(self, batch, batch_idx):
            return super().training_step({"input_ids": batch[0]}, batch_idx)

    attached = tracker(probe, 4)
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(probe.tokens.view(24, 12)), batch_size=4
    )
    trainer(tmp_path, attached).fit(Tuples(), data)
    frame = attached.store.to_pandas()
    assert frame.loc[frame.step == 4, "tokens_seen"].isna().all()


def test_two_trackers_with_names_keep_apart(tmp_path, probe):
    class Pair(Job):
        def __init__(self):
            super().__init__()
            self.teacher = HandWritten(n_layers=2)

    attached = (
        tracker(probe, 4, model="network"),
        tracker(probe, 4, model="teacher", name="teacher"),
    )
    trainer(tmp_path, *attached).fit(Pair(), batches())
    store = attached[0].store
    assert store.runs() == ["job/0", "job/0.teacher"]
    frame = store.to_pandas("job/0.teacher")
    assert frame["layer"].max() == 2
    logged = pd.read_csv(tmp_path / "job" / "0" / "metrics.csv")
    assert {"anisotropy/layer_03", "teacher_anisotropy/layer_02"} <= set(logged.columns)
    assert "teacher_anisotropy/layer_03" not in logged.columns


def test_compiled_model_by_name(tmp_path, probe):
    class Compiled(Job):
        def __init__(self):
            super().__init__()
            self.network = torch.compile(self.network, backend="eager")

    attached = tracker(probe, 4, model="network", layers="blocks.*")
    trainer(tmp_path, attached).fit(Compiled(), batches())
    frame = attached.store.to_pandas()
    assert set(frame.loc[frame.layer.notna(), "model"]) == {"HandWritten"}


def test_tokens_of_a_mask_that_says_who_sees_whom():
    ids = torch.ones(2, 8, dtype=torch.long)
    batch = {"input_ids": ids, "attention_mask": torch.zeros(2, 1, 8, 8)}
    assert add_tokens(0, batch, world_size=1) == 16


def test_the_loss_of_an_accumulated_step_is_not_divided(tmp_path, probe):
    attached = tracker(probe, 1)
    job = Job()
    trainer(tmp_path, attached, max_steps=3, accumulate_grad_batches=2).fit(job, batches())
    frame = attached.store.to_pandas()
    stored = frame.query("metric == 'train/loss'").set_index("step")["value"].to_dict()
    assert stored == {step: pytest.approx(job.losses[2 * step - 1]) for step in (1, 2, 3)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64])
def test_tokens_are_counted_not_summed(dtype):
    mask = torch.ones(600, 100).to(dtype)
    mask[:, 90:] = 0
    seen = 2**24 + 1
    for _ in range(2):
        seen = add_tokens(seen, {"attention_mask": mask}, world_size=2)
    assert int(seen) == 2**24 + 1 + 2 * 2 * 600 * 90
