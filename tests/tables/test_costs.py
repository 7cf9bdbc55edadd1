import pandas as pd
import pytest

from repdyn.tables.lines import cost_line, failure_line

NOT_FOUND = "the hub has no such revision of lab/model@{} (404)"


def test_cost_is_the_median_and_bytes_the_sum(published, frame_of, scalar_row):
    frame = frame_of(published(steps=(0, 1, 2)))
    frame.loc[(frame["metric"] == "seconds/download") & (frame["step"] == 2), "value"] = 100.0
    assert cost_line(frame) == (
        "per checkpoint: download 3.1 s, load 0.5 s, forward 2.1 s, kernels 1.4 s (20% of it in the kernels); "
        "0.42 GB downloaded"
    )


def test_cost_of_local_checkpoints(published, frame_of):
    frame = frame_of(published(steps=(0, 1)))
    frame.loc[frame["metric"].isin(["seconds/download", "bytes/download"]), "value"] = 0.0
    assert cost_line(frame[frame["metric"] != "seconds/download"]) == (
        "per checkpoint: load 0.5 s, forward 2.1 s, kernels 1.4 s (35% of it in the kernels)"
    )


def test_cost_in_gigabytes(published, frame_of):
    assert str(cost_line(frame_of(published(steps=range(15))))).endswith("; 2.1 GB downloaded")


def test_nothing_to_say_of_a_live_run(run):
    assert cost_line(run(steps=(0, 1))) is None
    assert failure_line(run(steps=(0, 1))) is None


def test_failures_of_one_kind_are_told_once(failures, frame_of):
    frame = frame_of(*(failures(step, NOT_FOUND.format(f"{step:07x}")) for step in (1000, 8, 16)))
    assert failure_line(frame) == (
        "3 checkpoints failed: step 8, 16, 1,000: the hub has no such revision of lab/model (404); "
        "--retry-failed tries again"
    )


def test_failures_of_many_steps_and_kinds(failures, frame_of):
    rows = [failures(step, f"out of memory: {step} bytes wanted, " + "and so on " * 20) for step in range(8)]
    rows += [failures(step, reason) for step, reason in ((10, "gated"), (11, "broken"), (12, "gone"))]
    text = failure_line(frame_of(*rows))
    assert text == (
        "11 checkpoints failed: step 0, 1, 2, 3, 4 and 3 more: out of memory: 0 bytes wanted, and so on and so on and so "
        "on and so on a...; step 10: gated; 2 for other reasons; --retry-failed tries again"
    )


def test_failure_of_a_live_run_is_no_matter_of_retrying(failures, frame_of):
    assert failure_line(frame_of(failures(4, "RuntimeError: no", revision=None))) == (
        "1 checkpoint failed: step 4: RuntimeError: no"
    )


@pytest.mark.parametrize("reason", ["gated", "KeyError: 'x'\n  at line 3"], ids=["one line", "several"])
def test_failure_of_a_finished_model_has_no_step(failures, frame_of, reason):
    text = failure_line(frame_of(failures(0, reason, stage="finished", revision="main")))
    assert text == f"1 checkpoint failed: {' '.join(reason.split())}; --retry-failed tries again"


def test_a_step_measured_after_all_is_no_failure(published, frame_of):
    assert failure_line(pd.concat([frame_of(published(steps=(0,)))])) is None
