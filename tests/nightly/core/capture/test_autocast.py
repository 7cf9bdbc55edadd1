"""Autocast: a measurement runs in the precision of the weights, and says so where the model decides
otherwise.
"""

import pytest
import torch
from lightning.fabric import Fabric
from small import HandWritten
from torch.nn.functional import cross_entropy

from repdyn import Tracker, measure, open_store


def values(frame):
    return (
        frame.loc[frame["layer"].notna()]
        .sort_values(["metric", "subset", "layer"])["value"]
        .tolist()
    )


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_model_of_fabric_is_measured_as_it_is_offline(
    tmp_path, small_probe, without_figures, precision, compiled
):
    torch.manual_seed(0)
    bare = HandWritten()
    fabric = Fabric(accelerator="cpu", precision=precision)
    whole = torch.compile(bare, backend="eager") if compiled else bare
    model, optimizer = fabric.setup(whole, torch.optim.SGD(bare.parameters(), lr=0.1))
    with Tracker(
        model, small_probe, schedule=1, store=tmp_path / "live", on_error="raise"
    ) as tracker:
        tokens = torch.randint(3, 50, (4, 12))
        loss = cross_entropy(model(tokens)[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
        fabric.backward(loss)
        optimizer.step()
        tracker.step(loss=loss)
    frame = open_store(tmp_path / "live").to_pandas()
    assert values(frame.query("step == 1")) == values(measure(bare, small_probe).to_pandas())
    layers = frame[frame["layer"].notna()]
    assert set(layers["dtype"]) == {"float32"}
    assert set(layers["model"]) == {"HandWritten"}
    assert all(not name.startswith("_") for name in layers["module"])
    assert measure(model, small_probe).checkpoint.model == "HandWritten"


def test_autocast_around_a_measurement_makes_no_difference(hand_written, small_probe):
    expected = measure(hand_written, small_probe)
    with torch.autocast("cpu", torch.bfloat16):
        profile = measure(hand_written, small_probe)
        assert torch.is_autocast_enabled("cpu")
    assert values(profile.to_pandas()) == values(expected.to_pandas())
    assert {row.dtype for row in profile.rows} == {"float32"}


class InsideTheModel(HandWritten):
    """(salesforce/LAVIS, lavis/models/blip2_models/blip2_opt.py)"""

    def forward(self, tokens):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(tokens)


class InsideABlock(HandWritten):
    def __init__(self):
        super().__init__()
        self.blocks[1].feed_forward.forward = self._run_lower(self.blocks[1].feed_forward.forward)

    @staticmethod
    def _run_lower(forward):
        def run(x):
            with torch.autocast("cpu", torch.bfloat16):
                return forward(x)

        return run


class SwitchedOff(HandWritten):
    """(huggingface/transformers, src/transformers/models/nemotron/modeling_nemotron.py)"""

    def forward(self, tokens):
        with torch.autocast("cpu", torch.bfloat16, enabled=False):
            return super().forward(tokens)


@pytest.mark.parametrize(
    ("make", "precision"),
    [
        (InsideTheModel, "bfloat16 autocast"),
        (InsideABlock, "bfloat16 autocast"),
        (SwitchedOff, "float32"),
    ],
)
def test_autocast_that_the_model_enters_is_recorded(small_probe, make, precision):
    assert {row.dtype for row in measure(make(), small_probe).rows} == {precision}
