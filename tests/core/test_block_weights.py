"""Weights, gradients and updates of the blocks, in a live training and of a checkpoint."""

import pytest
import torch
from hugging_face_jobs import tracker, trainer
from small import HandWritten, random_tokens
from torch.nn.functional import cross_entropy

from repdyn import Tracker, kernels, measure, open_store

pytestmark = pytest.mark.usefixtures("without_figures")
NAMES = ("weight_norm", "gradient_norm", "update_ratio", "weight_stable_rank")


def joined(weights):
    return torch.cat([weight.detach().flatten().clone() for weight in weights])


def train(model, tracker, n_steps):
    """Two batches a step, gradients that are clipped and, before the last measured step,
    cleared.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    expected = {}
    for step in range(1, n_steps + 1):
        before = [joined(block.parameters()) for block in model.blocks]
        optimizer.zero_grad()
        for half in range(2):
            tokens = random_tokens(4, 12, seed=2 * step + half)
            cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        for layer, block in enumerate(model.blocks, start=1):
            now = joined(block.parameters())
            gradient = joined(weight.grad for weight in block.parameters())
            matrices = [
                weight.detach().double() for weight in block.parameters() if weight.ndim > 1
            ]
            ranks = [
                weight.norm() ** 2 / torch.linalg.matrix_norm(weight, 2) ** 2 for weight in matrices
            ]
            ratio = (now - before[layer - 1]).norm() / before[layer - 1].norm()
            expected[step, layer] = [now.norm(), gradient.norm(), ratio, torch.stack(ranks).mean()]
        if step == n_steps:
            optimizer.zero_grad(set_to_none=False)
        if tracker is not None:
            tracker.step()
    return expected


def test_rows_of_a_live_training_and_of_its_end(tmp_path, small_probe):
    torch.manual_seed(0)
    plain = HandWritten().eval()
    model = HandWritten().eval()
    model.load_state_dict(plain.state_dict())
    train(plain, None, 4)
    options = {"store": tmp_path / "a", "on_error": "raise", "report": False}
    with Tracker(model=model, probe=small_probe, schedule=2, metrics=NAMES, **options) as attached:
        expected = train(model, attached, 4)
    assert torch.equal(joined(plain.parameters()), joined(model.parameters()))
    rows = attached.store.to_pandas().dropna(subset="layer")
    cells = rows.set_index(["step", "layer", "metric"])[["value", "reason"]]
    for layer in (1, 2, 3):
        values = [cells.loc[(2, layer, name), "value"] for name in NAMES]
        assert values == pytest.approx([each.item() for each in expected[2, layer]], rel=1e-5)
        assert cells.loc[(4, layer, "update_ratio"), "value"] == pytest.approx(
            expected[4, layer][2].item(), rel=1e-5
        )
        assert "until zero_grad() clears them" in cells.loc[(4, layer, "gradient_norm"), "reason"]
        assert (
            "kept at scheduled steps of a live training"
            in cells.loc[(0, layer, "update_ratio"), "reason"]
        )
    of_end = {(row.layer, row.metric): row.value for row in measure(model, small_probe, NAMES).rows}
    assert all(
        of_end[layer, name] == cells.loc[(4, layer, name), "value"]
        for layer in (1, 2, 3)
        for name in NAMES[::3]
    )


def test_the_step_after_the_start_has_an_update(tmp_path, small_probe):
    """It had none wherever step 0 was measured, which it always is."""
    torch.manual_seed(0)
    model = HandWritten().eval()
    options = {"store": tmp_path / "a", "on_error": "raise", "report": False}
    with Tracker(
        model=model, probe=small_probe, schedule=1, metrics=["update_ratio"], **options
    ) as attached:
        expected = train(model, attached, 2)
    rows = attached.store.to_pandas().dropna(subset="layer")
    values = rows.set_index(["step", "layer"])["value"]
    for step, layer in expected:
        assert values[step, layer] == pytest.approx(expected[step, layer][2].item(), rel=1e-5)


@pytest.mark.parametrize("every", [1, 2])
def test_gradients_that_the_trainer_clears_before_it_says_so(tmp_path, small_probe, every):
    trainer(tmp_path / "job", tracker(small_probe, every, metrics=NAMES), max_steps=4).train()
    rows = open_store(tmp_path / "job" / "repdyn").to_pandas().dropna(subset="layer")
    assert rows.loc[rows["step"] > 0, "value"].gt(0).all()


def test_experts_that_are_stacked_are_not_one_matrix(hand_written, small_probe):
    matrices = [each.detach() for each in hand_written.blocks[0].parameters() if each.ndim > 1]
    hand_written.blocks[0].experts = torch.nn.Parameter(torch.eye(4).repeat(3, 1, 1))
    found = measure(hand_written, small_probe, ["weight_stable_rank"]).rows[0].value
    assert found == kernels.weight_stable_rank(*matrices, *[torch.eye(4)] * 3).item()


def test_the_kernel_of_a_convolution_is_one_matrix(hand_written, small_probe):
    """(huggingface/transformers, src/transformers/models/mamba/modeling_mamba.py)"""
    matrices = [each.detach() for each in hand_written.blocks[0].parameters() if each.ndim > 1]
    convolution = torch.nn.Conv1d(16, 16, 4, groups=16)
    hand_written.blocks[0].convolution = convolution
    value = measure(hand_written, small_probe, ["weight_stable_rank"]).rows[0].value
    kernel = convolution.weight.detach()[:, 0]
    assert value == kernels.weight_stable_rank(*matrices, kernel).item()


def test_undefined():
    with pytest.raises(kernels.UndefinedError, match="not all weights or gradients are finite"):
        kernels.weight_norm.or_raise(torch.tensor([1.0, torch.inf]))
    with pytest.raises(kernels.UndefinedError, match="all weights were 0"):
        kernels.update_ratio.or_raise(torch.ones(3), torch.zeros(3))
    assert kernels.weight_stable_rank(torch.zeros(3, 4)).isnan()


@pytest.mark.parametrize("exponent", [-200, 200, 307])
def test_squares_outside_the_range_of_float64_make_no_norm_of_zero(exponent):
    """A norm of 1e-200 was 0, and one of 1e200 not finite."""
    weights = torch.tensor([3.0, -4.0], dtype=torch.float64) * 10.0**exponent
    assert kernels.weight_norm(weights).item() == pytest.approx(5 * 10.0**exponent, rel=1e-12)
    assert kernels.update_ratio(1.5 * weights, weights).item() == pytest.approx(0.5, rel=1e-12)
