"""Alerts: rules, the conditions they are made of, and where they are shown."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest
from alert_rules import rule
from rich.console import Console
from synthetic_runs import make_failures, make_row, make_run, make_scalar, measured_runs, to_frame

from repdyn.store.schema import too_few_distinct
from repdyn.views.alerts import (
    RULES,
    Rule,
    applies,
    as_yaml,
    find_alerts,
    read_rules,
    resolve_rules,
    stored_rules,
    write_rules,
)
from repdyn.views.charts.lines import MARKED
from repdyn.views.console.runs import print_alerts, print_summary
from repdyn.views.figures.run import heatmap
from repdyn.views.judging import described_runs, stacks_of_run
from repdyn.views.tables.style import ALERT_COLOUR
from repdyn.views.tables.words import alert_lines


def series(values, metric="two_nn", std=0.0, layer=1, subset="all", **more):
    """Return the rows of one layer at steps 0, 10, 20, ..."""
    return [
        make_row(
            step=10 * number,
            layer=layer,
            metric=metric,
            subset=subset,
            value=value,
            std=std,
            **more,
        )
        for number, value in enumerate(values)
    ]


def steps_and_layers(rows, *rules):
    return [(alert.step, alert.layer) for alert in find_alerts(to_frame(rows), rules)]


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ([8, 4], [10]),
        ([8, 4.01], []),
        ([8, 5, 2.5], [20]),
        ([8, 5, 4], []),  # compared with the previous value, not with the highest
        ([8, math.nan, 4], [20]),  # compared with the last defined value
        ([8, 4, 4, 4], [10]),  # at the step of the change only
        ([8], []),
        ([0.0, 0.0], []),
    ],
)
def test_falls(values, steps):
    assert [step for step, _ in steps_and_layers(series(values), rule("falls", 0.5))] == steps


@pytest.mark.parametrize(("std", "steps"), [(1.0, [10]), (2.0, [])])
def test_a_fall_within_the_variation_over_batches_is_no_alert(std, steps):
    """The difference is 4, its standard deviation sqrt(2) * std."""
    assert [
        step for step, _ in steps_and_layers(series([8, 4], std=std), rule("falls", 0.5))
    ] == steps


def test_rises():
    assert steps_and_layers(series([1, 1.4, 2.1, 2.2]), rule("rises", 1.5)) == [(20, 1)]


def test_above_and_below_hold_at_the_crossing():
    values = [0.5, 0.95, 0.96, 0.5, 0.99]
    assert steps_and_layers(series(values), rule("above", 0.9)) == [(10, 1), (40, 1)]
    assert steps_and_layers(series(values), rule("below", 0.9)) == [(0, 1), (30, 1)]


def test_a_lost_value_is_one_alert_with_the_reason():
    rows = series([8, math.nan, math.nan], reason="the points contain NaN")
    rows += series([8], layer=2)  # which the model has lost after step 0
    (alert,) = find_alerts(to_frame(rows), [rule("undefined")])
    message = "two_nn (all vectors) of layer 1 has no value any more: the points contain NaN"
    assert alert.step == 10
    assert alert.layer == 1
    assert alert.message == message


def test_a_value_missing_from_the_start_is_an_alert_only_if_not_finite():
    for reason, expected in (
        ("the input embeddings have 3 dimensions", []),
        ("the points contain inf", [(0, 1)]),
    ):
        assert (
            steps_and_layers(series([math.nan, math.nan], reason=reason), rule("undefined"))
            == expected
        )


def test_a_comparison_without_its_earlier_checkpoint_is_no_alert():
    rows = [
        make_row(
            step=0,
            metric="cka_previous",
            layer=1,
            value=math.nan,
            reason="no states of a step before 0 are stored",
        ),
        make_row(step=10, metric="cka_previous", layer=1, value=0.9, compared_to=0),
        make_row(
            step=20,
            metric="cka_previous",
            layer=1,
            value=math.nan,
            reason="the states of step 10 could not be saved",
        ),
    ]
    assert find_alerts(to_frame(rows), [rule("undefined", metrics=("cka_previous",))]) == []


def test_collapsed_vectors_are_an_alert():
    counts = {"on_distinct": True, "n_vectors": 4096}
    reason = too_few_distinct(True, 2047, 4096)
    gone = make_row(
        step=40, layer=1, metric="two_nn", n_unique=2047, value=math.nan, reason=reason, **counts
    )
    (alert,) = find_alerts(to_frame([*series([8] * 4, n_unique=4000, **counts), gone]))
    assert alert.rule == "no value"
    assert alert.detail == "fewer than half of the vectors are distinct: 2047 of 4096"


def test_few_distinct_vectors_in_the_first_measurements_are_no_alert():
    """Every small model whose vectors are nearly the same before it has learnt anything."""
    gone = {"value": math.nan, "reason": too_few_distinct(True, 2047, 4096), "n_vectors": 4096}
    settled = rule("undefined", settled=True)

    def alerts(steps, last=None):
        rows = [make_row(step=step, layer=1, metric="two_nn", value=8.0) for step in steps[:-1]]
        rows.append(make_row(step=steps[-1], layer=1, metric="two_nn", **(last or gone)))
        return steps_and_layers(rows, settled)

    assert alerts([0, 10, 20, 30]) == []
    assert alerts([0, 10, 20, 30, 40]) == [(40, 1)]
    assert alerts([1, 2, 4, 8, 16, 32]) == []
    broken = {"value": math.nan, "reason": "the states contain NaN"}
    assert alerts([1, 2], broken) == [(2, 1)]


def test_a_dimension_that_falls_while_steps_double_must_fall_twice_as_far():
    """Half of the dimension is lost from step 16 to 32 of a sound training with a warm-up."""
    halved = rule("falls", 0.5, settled=True)

    def alerts(steps, values):
        pairs = zip(steps, values, strict=True)
        rows = [make_row(step=step, layer=1, metric="two_nn", value=value) for step, value in pairs]
        return [step for step, _ in steps_and_layers(rows, halved)]

    assert alerts([16, 32], [8, 3]) == []
    assert alerts([16, 32], [8, 2]) == [32]
    assert alerts([16, 31], [8, 3]) == [31]


def profile(levels, layers=4):
    return [
        row
        for layer in range(layers)
        for row in series([level * (layer + 1) for level in levels], layer=layer)
    ]


def test_a_profile_jumps_relative_to_its_history():
    steady = [1, 1.05, 1.1, 1.16, 1.22]
    jumps = rule("jumps", 5)
    assert steps_and_layers(profile([*steady, 2.4]), jumps) == [(50, None)]
    assert (
        steps_and_layers(profile([*steady, 1.4]), jumps) == []
    )  # a change of 13%, too small for any profile
    assert steps_and_layers(profile([*steady[:4], 2.4]), jumps) == []  # three changes are too few
    assert steps_and_layers(profile([1, 1.5, 2.3, 3.4, 5.1, 8.2]), jumps) == []  # its usual change
    assert (
        steps_and_layers(profile([1, 1, 1, 1, 1, 1, 2.4]), jumps) == []
    )  # steps without a change are ignored
    # a fault in one layer changes those after it, and most the last of them
    late = [
        row.with_columns(value=row.value * (1 + row.layer))
        if row.step == 50 and row.layer >= 2
        else row
        for row in profile([*steady, 1.3])
    ]
    (alert,) = find_alerts(to_frame(late), [jumps])
    assert alert.detail.startswith("first in layer 2, most in layer 3, 4.88 at step 40, now 20.8")


def test_a_change_is_compared_with_changes_over_as_many_steps():
    """A jump at each step of a schedule that doubles, and where it goes over to longer stretches;
    or one no larger than what the run has shown twice before."""
    jumps = rule("jumps", 5)

    def alerts(steps, levels):
        place = {10 * number: step for number, step in enumerate(steps)}
        rows = [row.with_columns(step=place[row.step]) for row in profile(levels)]
        return [step for step, _ in steps_and_layers(rows, jumps)]

    doubling = [0, 1, 2, 4, 8, 16, 32, 64]
    growing = [1, 1.0001, 1.001, 1.004, 1.016, 1.06, 1.3, 2.6]
    assert alerts(doubling, growing) == []
    even = list(range(0, 80, 10))
    assert alerts(even, growing) == [70]
    longer = [0, 10, 20, 30, 40, 50, 150, 250]
    assert alerts(longer, [1, 1.02, 1.04, 1.06, 1.08, 1.1, 1.5, 2.1]) == []
    assert alerts(even, [1, 1.3, 1.31, 1.32, 1.33, 1.34, 1.35, 1.9]) == []


def test_a_profile_jumps_by_the_mean_over_its_blocks():
    """The embeddings enter no mean: neither does their change make a jump, nor their rest hide
    one."""
    steady = [1, 1.05, 1.1, 1.16, 1.22]
    jumps = rule("jumps", 5)
    of_blocks = profile([*steady, 1.28])
    changed = [
        row.with_columns(value=1e4) if (row.step, row.layer) == (50, 0) else row
        for row in of_blocks
    ]
    assert any(row.layer == 0 for row in of_blocks)
    assert steps_and_layers(changed, jumps) == []
    # a quarter of the profile would hold a change of 0.24 in the blocks below 0.2
    resting = [
        row.with_columns(value=1.0 if row.layer == 0 else row.value)
        for row in profile([*steady, 1.22 / 0.76])
    ]
    (alert,) = find_alerts(to_frame(resting), [rule("jumps", 4)])
    assert "layer 0" not in alert.detail


def test_a_first_value_beyond_a_bound_did_not_rise():
    """A finished model has a single measurement, at no step: nothing rose or fell."""
    above = rule("above", 5.0)
    (alert,) = find_alerts(to_frame(series([8.0])), [above])
    assert alert.event == "is above 5"
    (alert,) = find_alerts(to_frame(series([8.0])), [rule("below", 9.0)])
    assert alert.event == "is below 9"
    (alert,) = find_alerts(to_frame(series([4.0, 8.0])), [above])
    assert alert.event == "rose above 5"


def test_alerts_of_a_finished_model_name_no_step():
    frame = to_frame(series([8.0], stage="finished"))
    (run,) = stacks_of_run(frame, [rule("above", 5.0)])
    (statement,) = [each for each in run.insights.statements if each.kind == "alert"]
    assert statement.sentence == "Alert (above): two_nn (all vectors) of layer 1 is above 5: 8."
    assert statement.severity == "note"
    console = Console(file=io.StringIO(), width=200)
    print_alerts([run], console)
    told = console.file.getvalue()
    assert "above: two_nn (all vectors)" in told
    assert "step" not in told


def test_scalars_and_heads_and_failures():
    rows = [
        make_scalar(0, 2.0),
        make_scalar(10, 2.1),
        make_scalar(20, 4.0),
        *make_failures(30, run="decoder-quickstart", revision=None),
    ]
    rows += series([8, 1], head=0)
    (alert,) = find_alerts(to_frame(rows))
    assert (
        alert.message == "train/loss rose to 1.25 times what it was or more: 2.1 at step 10, now 4"
    )
    assert alert.layer is None
    assert alert.subset is None


def test_values_are_written_as_in_statements():
    """The alert says 8e+03 where the statement on the same layer says 8,000."""
    (alert,) = find_alerts(to_frame(series([8000, 1234])), [rule("falls", 0.5)])
    assert alert.detail == "8,000 at step 0, now 1,234"


def test_a_rule_on_subsets():
    rows = series([8, 1]) + series([8, 1], subset="no_sink")
    found = find_alerts(to_frame(rows), [rule("falls", 0.5, subsets=("no_sink",))])
    assert [alert.subset for alert in found] == ["no_sink"]


def test_stacks_are_evaluated_separately():
    rows = series([8, 4], stack="encoder") + series([8, 8], stack="decoder")
    (alert,) = find_alerts(to_frame(rows), [rule("falls", 0.5)])
    assert alert.message.startswith(
        "two_nn (encoder, all vectors) of layer 1 fell to 0.5 of what it was or less: "
    )


def test_no_alerts_in_a_normal_run():
    assert find_alerts(make_run()) == []


def test_the_order_of_the_rows_does_not_matter():
    rows = to_frame(profile([1, 1.05, 1.1, 1.16, 1.22, 2.4, 1]) + series([8, 1], subset="no_sink"))
    alerts = find_alerts(rows, RULES)
    shuffled = find_alerts(rows.sample(frac=1, random_state=0), RULES)
    assert (
        [*map(str, shuffled)] == [*map(str, alerts)] != []
    )  # their missing values are NaN, which equals nothing


def test_against_a_naive_reference():
    """Falls of a whole run, value by value."""
    state = np.random.RandomState(0)
    rows = [
        make_row(
            step=step,
            layer=layer,
            metric="two_nn",
            value=float(state.choice([1.0, 2.0, 3.0, math.nan])),
            std=0.0,
        )
        for step in range(12)
        for layer in range(5)
    ]
    expected = []
    for row in rows:
        before = [
            r.value
            for r in rows
            if r.layer == row.layer and r.step < row.step and not math.isnan(r.value)
        ]
        if before and row.value <= 0.5 * before[-1]:
            expected.append((row.step, row.layer))
    assert steps_and_layers(rows, rule("falls", 0.5)) == expected != []


SOUND = {"name": "mine", "when": "falls", "bound": 0.5, "metrics": ("two_nn",)}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"when": "sinks"}, "got 'sinks'"),
        ({"bound": None}, "got None"),
        ({"bound": 1.0}, "between 0 and 1"),
        ({"bound": True}, "got True"),
        ({"bound": float("nan")}, "got nan"),
        ({"when": "undefined"}, "no bound"),
        ({"name": "a\nb"}, "printable text"),
        ({"metrics": ()}, "metrics"),
        ({"subsets": {"all": 1}}, "subsets"),
        ({"stop": "yes"}, "stop"),
    ],
)
def test_invalid_rules(change, word):
    with pytest.raises(ValueError, match=word):
        Rule(**{**SOUND, **change})


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("name: mine", "list of rules"),
        ("- falls", "got 'falls'"),
        ("- {name: a, when: falls, metric: two_nn}", "'metric': 'two_nn'"),
        ("- !!python/object:os.system x", "YAML"),
        # a traceback of a thousand lines
        (f"mine: {'[' * 200_000}", "nested too deeply"),
    ],
    ids=["no list", "no record", "unknown metric", "code", "nested"],
)
def test_invalid_files(text, word, tmp_path):
    path = tmp_path / "alerts.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=word) as error:
        read_rules(path)
    assert str(path) in str(error.value)


def test_rules_are_read_as_written(tmp_path):
    rules = (
        *RULES,
        Rule(name="halt", when="above", bound=0.99, metrics=("anisotropy",), stop=True),
    )
    rules += (
        Rule(name="zero", when="below", bound=0.0, metrics=("isoscore",), subsets=("all", "rare")),
    )
    write_rules(rules, tmp_path / "alerts.yaml")
    assert read_rules(tmp_path / "alerts.yaml") == stored_rules(tmp_path / "alerts.yaml") == rules
    assert (tmp_path / "alerts.yaml").read_text() == as_yaml(rules)


def test_arguments_that_stand_for_rules(tmp_path):
    write_rules(RULES[:2], tmp_path / "mine.yaml")
    assert resolve_rules("default") == RULES
    assert resolve_rules(None) == ()
    assert (
        resolve_rules(str(tmp_path / "mine.yaml"))
        == resolve_rules(tmp_path / "mine.yaml")
        == RULES[:2]
    )
    assert resolve_rules(list(RULES[1:])) == RULES[1:]
    with pytest.raises(ValueError, match="mapping with name, when and metrics.* got 'two_nn'"):
        resolve_rules(["two_nn"])


def test_patterns_of_metrics():
    rule = Rule(name="a", when="undefined", metrics="gride_*", subsets="all")
    assert applies(rule, "gride_2", "all")
    assert not applies(rule, "gride_2", "no_sink")
    assert not applies(rule, "two_nn", "all")
    assert not applies(rule, "gride_2", None)


STEPS = (0, 10, 20, 30)


def collapsing(step, depth):
    """Return a run in which half of the layers lose most of their dimension at step 20."""
    return 2.0 if step >= 20 and depth >= 0.5 else 9.0


def marks(axes):
    """Return the positions of everything drawn in the colour of alerts."""
    points = []
    for line in axes.get_lines():
        if any(
            isinstance(of, str) and of == ALERT_COLOUR
            for of in (line.get_color(), line.get_markeredgecolor())
        ):
            points += list(zip(line.get_xdata(), line.get_ydata(), strict=True))
    return sorted((float(x), float(y)) for x, y in points)


def caption(figure):
    return figure.get_suptitle().splitlines()


@pytest.fixture
def collapsed(run):
    frame = run(steps=STEPS, dimension=collapsing)
    return frame, find_alerts(frame)


def test_one_line_for_all_layers_with_the_one_that_changed_most(run):
    frame = run(steps=STEPS, dimension=lambda step, depth: 9.0 if step < 20 else 2.2 - depth)
    assert alert_lines(find_alerts(frame)) == [
        "step 20, dimension halved: two_nn (all vectors) of layers 0-6 fell to 0.5 of what it was "
        "or less: in layer 6, 9 at step 10, now 1.2"
    ]


def test_cells_of_a_heatmap_are_outlined(collapsed):
    (run,) = measured_runs(collapsed[0])
    figure = heatmap(run, "two_nn", "all")
    # step 20 stands in the third column
    assert marks(figure.axes[0]) == [(2.0, 3.0), (2.0, 4.0), (2.0, 5.0), (2.0, 6.0)]
    assert MARKED in caption(figure)[-1]
    other = heatmap(run, "anisotropy", "all")
    assert marks(other.axes[0]) == []
    assert MARKED not in " ".join(caption(other))


def test_the_summary_lists_the_first_alerts(run):
    stream = io.StringIO()
    frame = run(
        steps=range(0, 100, 10), n_blocks=2, dimension=lambda step, depth: 9.0 if step % 20 else 2.0
    )
    print_summary(*stacks_of_run(frame), console=Console(file=stream, width=160))
    said = [line for line in stream.getvalue().splitlines() if "alert" in line]
    assert [line.partition(",")[0] for line in said[:3]] == [
        "alert at step 20",
        "alert at step 40",
        "alert at step 60",
    ]
    assert said[3].startswith("and 1 more alert,")


def printed(store, **changes):
    stream = io.StringIO()
    print_alerts(
        [replace(run, **changes) for run in described_runs([store]).runs],
        Console(file=stream, width=200),
    )
    return stream.getvalue().splitlines()


def test_the_rules_of_a_run_are_used_for_its_store(filled, published, tmp_path):
    store = filled(
        tmp_path,
        published("lab/a", steps=STEPS, dimension=collapsing),
        published("lab/b", steps=STEPS),
    )
    assert ": 1 alert; " in printed(store)[0]
    write_rules((), store.alerts_path("lab/a"))
    assert printed(store)[0].endswith(": no alert; 4 checkpoints, 0 rules")
    assert ": 1 alert; " in printed(store, rules=RULES)[0]
