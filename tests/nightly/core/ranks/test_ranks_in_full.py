"""Two processes measure together: the numbers of one, nobody waits for ever, and the training is
what it was.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cases
import pytest
from launched import TORCHRUN, launched

from repdyn import measure, open_store
from repdyn.metrics import METRICS

pytestmark = [pytest.mark.process]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where two processes under torchrun have left what came out of each case."""
    folder = tmp_path_factory.mktemp("ranks")
    launched(*TORCHRUN, "2", cases.__file__, str(folder))
    return folder


def outcome(folder: Path, case: str) -> Any:
    told = json.loads((folder / f"{case}.json").read_text())
    assert "failed" not in told, told["failed"]
    return told


def alone(**settings: Any) -> list[list[Any]]:
    """The values of one process, through JSON as those of the two have come."""
    return json.loads(
        json.dumps(cases.values(measure(cases.fresh(), cases.PROBE, **settings).rows))
    )


@pytest.mark.once
@pytest.mark.parametrize("shares", cases.BATCHES)
def test_two_ranks_give_the_numbers_of_one_to_the_last_bit(folder, shares):
    assert outcome(folder, f"shared {shares}") == alone(tokens_per_forward=cases.BATCHES[shares])


def test_all_metrics_are_shared(folder):
    shared = outcome(folder, "all metrics")
    assert shared == json.loads(json.dumps(cases.all_metrics()))
    assert {row[2] for row in shared} == {
        name for name, metric in METRICS.items() if not metric.is_of_weights
    }
    # a width of 16 has too few eigenvalues for a power law, a first checkpoint none before it, the
    # model no output head
    undefined = {(row[2], row[8]) for row in shared if row[5] == "nan"}
    lacking = {
        name
        for name, metric in METRICS.items()
        if metric.captures & {"previous_checkpoint", "output_head"}
    }
    assert {metric for metric, _ in undefined} <= {"alpha_req", *lacking}, undefined


def test_states_in_files_are_shared(folder):
    assert outcome(folder, "little memory") == alone(tokens_per_forward=60)


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "fsdp2"])
def test_a_wrapped_model_has_the_numbers_and_names_of_the_bare_one(folder, kind):
    assert outcome(folder, f"untrained {kind}") == alone(tokens_per_forward=60)


def test_what_fails_on_one_rank_is_told_to_all(folder):
    first, second = outcome(folder, "one rank fails")
    assert first.startswith(
        "RuntimeError: expected every rank to measure, but rank 1: ForwardError"
    )
    assert second.startswith("ForwardError")
    assert first.endswith("ZeroDivisionError: no such luck")
    assert second.endswith("ZeroDivisionError: no such luck")


def test_a_rank_without_room_for_its_layers_keeps_nobody_waiting(folder):
    told, afterwards = outcome(folder, "no room on one rank")
    assert told == [
        "RuntimeError: expected every rank to measure, but rank 1: OSError: no space left",
        "OSError: no space left",
    ]
    assert afterwards == alone(tokens_per_forward=60)


@pytest.mark.parametrize("kind", ["fsdp", "fsdp2"])
def test_a_forward_pass_that_breaks_off_leaves_the_training_as_it_was(folder, kind):
    for plain, tracked in outcome(folder, f"out of memory {kind}"):
        if (
            kind == "fsdp"
        ):  # whose root keeps the gathered weights until the next step, the same ones
            del plain["norms"], tracked["norms"]
        assert tracked == plain
    frame = open_store(folder / "memory").to_pandas(kind)
    assert set(frame.loc[frame["metric"] == "two_nn", "reason"]) == {"OutOfMemoryError: no memory"}


def test_ranks_with_probes_of_their_own_are_refused(folder):
    for said in outcome(folder, "other probe"):
        assert said.startswith(
            "ValueError: expected what a run is tracked by to be the same on every rank, got {"
        )
        assert said.endswith("on rank 1; give all ranks the same")


def test_ranks_at_other_steps_are_not_mixed(folder):
    refused, reasons, waiting = outcome(folder, "other schedule")
    assert all(
        "schedule" in said and said.endswith("on rank 1; give all ranks the same")
        for said in refused
    )
    assert reasons == [
        "ValueError: expected the optimizer step to be the same on every rank, got 1 on rank 0 "
        "and 2 on rank 1; give all "
        "ranks the same"
    ]
    assert waiting == [0, 0]  # and only the first rank has rows to store


def test_tensor_parallelism_is_refused(folder):
    for said in outcome(folder, "tensor parallel"):
        assert said.startswith(
            "ValueError: expected whole layers on each rank, or shards of FSDP, got tensor "
            "parallelism (blocks.0.feed_"
        )


def test_a_kernel_that_fails_on_one_rank_costs_its_layers_alone(folder):
    told = outcome(folder, "one kernel fails")
    assert [(layer, reason) for layer, _, reason in told["rows"]] == [
        (0, None),
        (1, "ZeroDivisionError: no such luck"),
        (2, None),
        (3, "ZeroDivisionError: no such luck"),
    ]
    assert told["raised"][0].startswith(
        "RuntimeError: expected every rank to measure, but rank 1: ZeroDivision"
    )


@pytest.mark.parametrize("kind", ["ddp", "compiled ddp", "fsdp", "fsdp2"])
def test_training_is_bit_identical(folder, kind):
    ranks = outcome(folder, f"tracked {kind}")["ranks"]
    for plain, tracked in ranks:
        assert tracked == plain
        assert len(plain["losses"]) == 4
    assert ranks[0][0]["losses"] != ranks[1][0]["losses"]  # each rank has data of its own


@pytest.mark.once
def test_every_strategy_tracks_the_same(folder):
    """The same training four times: the weights differ in their last bits, and so may the
    values.
    """
    frames = {
        kind: open_store(folder / "store").to_pandas(kind)
        for kind in ("ddp", "compiled ddp", "fsdp", "fsdp2")
    }
    expected = frames["ddp"]
    assert set(expected["step"]) == {0, 2, 4}
    assert set(expected.loc[expected["layer"].notna(), "model"]) == {"HandWritten"}
    for frame in frames.values():
        assert frame["module"].tolist() == expected["module"].tolist()
        assert frame["tokens_seen"].tolist() == expected["tokens_seen"].tolist()
        assert frame["value"].to_numpy() == pytest.approx(expected["value"].to_numpy(), rel=1e-6)


def test_the_trainer_of_hugging_face(folder):
    for plain, tracked in outcome(folder, "hugging face trainer"):
        assert tracked == plain
        assert len(plain) == 2
    assert open_store(folder / "trainer" / "repdyn").steps("trainer") == [0, 2, 4]


def test_a_shard_cannot_be_measured_alone(folder):
    for said in outcome(folder, "shard alone"):
        assert said == (
            "expected all 2 ranks to measure this sharded HandWritten together, got one; call "
            "measure(..., "
            "ranks=Ranks.of_job()) on each of them"
        )


def test_a_store_that_the_first_rank_cannot_write_stops_all(folder):
    first, second = outcome(folder, "unwritable store")
    assert first.startswith("NotADirectoryError")
    assert second.startswith(
        "RuntimeError: expected every rank to measure, but rank 0: NotADirectoryError"
    )


def test_an_alert_asks_all_ranks_to_stop(folder):
    assert outcome(folder, "alert that stops") == [[False, True, True]] * 2


def test_a_loss_that_is_not_one_number_keeps_nobody_waiting(folder):
    first, second = outcome(folder, "loss of two numbers")
    assert first.startswith("ValueError: expected train/loss as one number, got Tensor")
    assert second.startswith(
        "RuntimeError: expected every rank to measure, but rank 0: ValueError: expected train/loss"
    )
