import io
import math

import pytest
from rich.console import Console
from synthetic_families import make_everything

from repdyn.metrics import METRICS
from repdyn.tables.frames import measurements
from repdyn.terminal.curves import measures_more_than_default, print_every_metric, seconds_by_metric

NAN = math.nan


@pytest.fixture
def rows(frame_of):
    return lambda *metrics, **given: frame_of(
        make_everything(**({"n_blocks": 2, "steps": (0, 8), "metrics": metrics or tuple(METRICS)} | given))
    )


def printed(frame, **given):
    stream = io.StringIO()
    print_every_metric(measurements(frame), Console(file=stream, width=80, **given))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


@pytest.mark.slow
def test_every_metric_has_a_line_within_its_family(rows):
    frame = rows()
    lines = printed(frame)
    assert max(map(len, lines)) <= 80
    body = lines[1 : lines.index(next(line for line in lines if line.split()[0] == "all"))]
    assert [line[13:].split()[0] for line in body] == list(METRICS)
    assert [line.split()[0] for line in body if not line.startswith(" ")] == [
        *("geometry", "dimension", "spectrum", "similarity", "sinks", "convergence", "evolution", "change", "tokens"),
        "topics",
    ]


def test_a_line_is_the_mean_over_layers_at_the_ends_and_the_cost(rows):
    frame = rows("norm", "step_length")
    frame["seconds"] = 0.5
    frame.loc[frame["metric"] == "step_length", "seconds"] = 0.25
    for step, value in ((0, 2.0), (8, 12345.6)):
        frame.loc[(frame["metric"] == "norm") & (frame["step"] == step), "value"] = value
    heading, norm, step, whole = (line.split() for line in printed(frame)[:4])
    assert heading == ["family", "metric", "first", "last", "s", "share"]
    assert norm == ["evolution", "norm", "2", "12,346", "▁█", "3.00", "86%"]
    assert [step[0], *step[-2:]] == ["step_length", "0.50", "14%"]
    assert whole == ["all", "3.50"]
    # norm: 3 layers on 2 subsets; step_length: 2 layers
    assert seconds_by_metric(measurements(frame)).to_dict() == {"norm": 3.0, "step_length": 0.5}


def test_the_cost_is_the_median_over_checkpoints_without_single_heads(rows):
    frame = rows("attention_topic_gap", steps=(0, 1, 8), n_heads=4)
    frame["seconds"] = 1.0
    frame.loc[frame["step"] == 0, "seconds"] = 50.0
    assert seconds_by_metric(measurements(frame)).to_dict() == {"attention_topic_gap": 2.0}


def test_what_has_no_value_is_named_with_its_reason(rows):
    frame = rows("norm", "token_rank", "token_top1_match", classes=())
    tokens = frame["metric"].str.startswith("token")
    frame.loc[tokens, ["value", "reason"]] = [NAN, "batch 0: no input embeddings were found"]
    lines = printed(frame)
    (line,) = [line for line in lines if "token_rank  " in line]
    assert line.split()[2:4] == ["-", "-"]
    assert "no value of token_rank, token_top1_match: no input embeddings were found" in lines


def test_a_metric_of_one_class_of_tokens_says_which(rows):
    frame = rows("alignment", classes=("rare",))
    lines = printed(frame[frame["subset"] != "all"])
    assert lines[1].startswith("convergence  alignment (rare)")


def test_a_finished_model_has_one_value(rows):
    lines = printed(rows("norm", steps=(0,), stage="finished"))
    assert lines[0].split() == ["family", "metric", "finished", "s", "share"]
    assert len(lines[1].split()) == 5


def test_without_unicode_there_are_no_curves(rows):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    frame = rows("norm")
    frame.loc[frame["metric"] == "norm", ["value", "reason"]] = [NAN, "zu groß"]
    print_every_metric(measurements(frame), Console(file=stream, width=80))
    stream.flush()
    assert "no value of norm: zu gro?" in raw.getvalue().decode("ascii")


@pytest.mark.parametrize(
    ("metrics", "more"),
    [(("anisotropy",), False), (("anisotropy", "two_nn"), False), (("two_nn", "norm"), True)],
    ids=str,
)
def test_when_there_is_more_than_the_default(rows, metrics, more):
    assert measures_more_than_default(measurements(rows(*metrics))) == more
