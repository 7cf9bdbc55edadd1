"""Names, values and the choice of layers of one checkpoint."""

import math
import re
from unittest.mock import Mock

import pytest
from logged_runs import checkpoint

from repdyn.metrics.logged import logged_values, validate_log_layers
from repdyn.views.publish.loggers import TensorBoardTarget, layout_of


def layers(values, section):
    """The logged layers of a section."""
    return [int(key[-2:]) for key in sorted(values) if key.startswith(f"{section}/layer_")]


def deep(row, metrics, n_layers=7):
    return [
        row(metric=metric, subset=subset, layer=layer, value=float(layer))
        for metric, _, subset in (name.partition("@") for name in metrics)
        for layer in range(n_layers)
    ]


EVERY = [*range(7)]
FEW = [0, 3, 6]
CASES = {
    "default": ("default", EVERY, FEW, EVERY, FEW),
    "all": ("all", EVERY, EVERY, EVERY, EVERY),
    "none": ("none", [], [], [], []),
    "a metric on all its subsets": (["anisotropy"], EVERY, EVERY, FEW, FEW),
    "a subset": (["*@no_sink"], FEW, EVERY, FEW, FEW),
    "settings": (["two_nn[*"], FEW, FEW, FEW, EVERY),
}


@pytest.mark.parametrize("case", CASES)
def test_the_layers_with_a_curve(row, case):
    names = ("anisotropy@all", "anisotropy@no_sink", "two_nn@all", "two_nn[discard=0.8]@all")
    log_layers, *expected = CASES[case]
    values = logged_values(deep(row, names), log_layers)
    sections = ("anisotropy", "anisotropy_no_sink", "two_nn", "two_nn[discard=0.8]")
    assert [layers(values, section) for section in sections] == expected
    for section in sections:
        assert [values[f"{section}/{statistic}"] for statistic in ("mean", "min", "max")] == [
            3.5,
            1.0,
            6.0,
        ]


def test_heads_are_logged_with_every_layer(row):
    rows = [
        row(metric="sink_rate", layer=layer, head=head)
        for layer in range(5)
        for head in (None, 0, 1)
    ]
    assert layers(logged_values(rows), "sink_rate") == [0, 2, 4]
    assert not any("_heads/" in key for key in logged_values(rows))
    assert sum("_heads/" in key for key in logged_values(rows, ["sink_rate"])) == 10


def test_a_pattern_must_match_what_is_measured():
    measured = [("two_nn", "all"), ("two_nn", "no_sink")]
    validate_log_layers(["two_*", "*@no_sink"], measured)
    with pytest.raises(
        ValueError, match="got 'two_nn@content'; measured are two_nn@all, two_nn@no_sink$"
    ):
        validate_log_layers(["two_nn", "two_nn@content"], measured)


def test_the_layout_has_a_category_for_each_section(row):
    values = logged_values(deep(row, ("anisotropy@all", "two_nn[discard=0.8]@all")))
    layout = layout_of({*values, "train/loss"})
    assert list(layout) == ["anisotropy", "two_nn[discard=0.8]"]
    for section, charts in layout.items():
        (_, (every,)), (_, (statistics,)) = charts.values()
        assert {key for key in values if re.match(every, key)} == {
            key for key in values if key.startswith(f"{section}/layer_")
        }
        assert {key for key in values if re.match(statistics, key)} == {
            f"{section}/{name}" for name in ("mean", "min", "max")
        }


def test_the_layout_of_a_later_step_has_the_keys_of_earlier_ones():
    """TensorBoard shows the last layout of a run: charts of earlier steps would disappear."""
    target = TensorBoardTarget(logger := Mock())
    for key in ("two_nn/mean", "two_nn/mean", "anisotropy/mean"):
        target.log_values({key: 1.0}, 1)
    layouts = [list(call.args[0]) for call in logger.experiment.add_custom_scalars.call_args_list]
    assert layouts == [["two_nn"], ["anisotropy", "two_nn"]]


def test_names_and_means(row, scalar_row):
    without_subset = row(step=10, layer=2, metric="two_nn", subset=None, value=7.0)
    values = logged_values([*checkpoint(row, 10), without_subset, scalar_row(10, 3.0)])
    assert {name: value for name, value in values.items() if "layer_01" not in name} == {
        "anisotropy/layer_00": 10.0,
        "anisotropy/layer_02": 12.0,
        "anisotropy_no_sink/layer_00": 10.5,
        "anisotropy_no_sink/layer_02": 12.5,
        "two_nn/layer_02": 7.0,
        "anisotropy/mean": 12.0,
        "anisotropy/min": 12.0,
        "anisotropy/max": 12.0,
        "anisotropy_no_sink/mean": 12.5,
        "anisotropy_no_sink/min": 12.5,
        "anisotropy_no_sink/max": 12.5,
        **{f"two_nn/{statistic}": 7.0 for statistic in ("mean", "min", "max")},
        "repdyn/loss": 3.0,
    }
    assert math.isnan(values["anisotropy/layer_01"])
    assert math.isnan(values["anisotropy_no_sink/layer_01"])
