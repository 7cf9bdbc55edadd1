"""Alerts where people look: in words, in the pictures, in the summary."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from rich.console import Console
from synthetic_runs import make_row, make_scalar, to_frame

from repdyn.alerts import RULES, Rule, find_alerts, write_rules
from repdyn.figures.metric_panels import MARKED, alerts_on
from repdyn.figures.overviews import steps_overview
from repdyn.figures.run import all_figures, heatmap, mean_over_layers
from repdyn.publish.results import show_run, show_store
from repdyn.tables.lines import alert_lines
from repdyn.tables.style import ALERT_COLOUR
from repdyn.terminal.alerts import print_alerts
from repdyn.terminal.summary import print_summary

STEPS = (0, 10, 20, 30)


def collapsing(step, depth):
    """Return a run in which half of the layers lose two thirds of their dimension at step 20."""
    return 3.0 if step >= 20 and depth >= 0.5 else 9.0


def marks(axes):
    """Return the positions of everything drawn in the colour of alerts."""
    found = []
    for line in axes.get_lines():
        if any(isinstance(of, str) and of == ALERT_COLOUR for of in (line.get_color(), line.get_markeredgecolor())):
            found += list(zip(line.get_xdata(), line.get_ydata(), strict=True))
    return sorted((float(x), float(y)) for x, y in found)


def caption(figure):
    return figure.get_suptitle().splitlines()


@pytest.fixture
def collapsed(run):
    frame = run(steps=STEPS, dimension=collapsing)
    return frame, find_alerts(frame)


def test_one_line_for_all_layers_with_the_one_that_changed_most(run):
    frame = run(steps=STEPS, dimension=lambda step, depth: 9.0 if step < 20 else 3.0 - depth)
    assert alert_lines(find_alerts(frame)) == [
        "step 20, dimension halved: two_nn (all) of layers 0-6 fell to 0.5 of what it was or less: in layer 6, 9 at step 10, now 2"
    ]


def test_a_lost_value_and_one_layer(run):
    frame = run(steps=STEPS, n_blocks=2, dimension=lambda step, depth: math.nan if (step, depth) == (20, 0.5) else 9.0)
    assert alert_lines(find_alerts(frame)) == [
        "step 20, no value: two_nn (all) of layer 1 has no value any more: 2 distinct vectors, 3 needed"
    ]


def test_cells_of_a_heatmap_are_outlined(collapsed):
    frame, alerts = collapsed
    figure = heatmap(frame, "two_nn", "all", alerts)
    # step 20 stands in the third column
    assert marks(figure.axes[0]) == [(2.0, 3.0), (2.0, 4.0), (2.0, 5.0), (2.0, 6.0)]
    assert caption(figure)[-1] == MARKED
    other = heatmap(frame, "anisotropy", "all", alerts)
    assert marks(other.axes[0]) == []
    assert MARKED not in caption(other)


def test_a_whole_profile_is_marked_above_its_column(run):
    frame = run(
        steps=range(0, 60, 10), dimension=lambda step, depth: 9 * 1.05 ** (step / 10) * (2 if step == 50 else 1)
    )
    rule = Rule(name="jump", when="jumps", bound=5, metrics=("two_nn",))
    figure = heatmap(frame, "two_nn", "all", find_alerts(frame, [rule]))
    assert marks(figure.axes[0]) == [(5.0, 1.0)]


@pytest.mark.slow
def test_a_step_with_an_alert_is_always_drawn(run):
    steps = range(0, 1000, 10)
    # lowest at the last step: the steps of the lowest and the highest value are always drawn
    frame = run(steps=steps, n_blocks=2, dimension=lambda step, depth: 3.0 - step / 9900 if step >= 970 else 9.0)
    alerts = find_alerts(frame)
    assert {alert.step for alert in alerts} == {970}
    without, marked = heatmap(frame, "two_nn", "all"), heatmap(frame, "two_nn", "all", alerts)
    n_columns = [figure.axes[0].images[0].get_array().shape[1] for figure in (without, marked)]
    assert n_columns[1] == n_columns[0] + 1
    assert len(marks(marked.axes[0])) == 3


def test_steps_of_the_means_are_marked(collapsed):
    frame, alerts = collapsed
    figure = mean_over_layers(frame, alerts=alerts)
    assert marks(figure.axes[0]) == [(20.0, 1.0)]
    assert marks(figure.axes[1]) == []
    assert caption(figure)[-1].endswith(f"; {MARKED}")


@pytest.mark.slow
def test_all_figures_are_marked(collapsed):
    frame, alerts = collapsed
    drawn = all_figures(frame, alerts=alerts)
    marked = {name for name, figure in drawn.items() if any(marks(axes) for axes in figure.axes)}
    assert marked == {"mean_over_layers", "heatmap_two_nn_all"}


def test_steps_of_a_family_are_marked_in_the_panel_of_their_metric():
    rows = [
        make_row(step=step, layer=layer, depth=layer / 2, metric=metric, value=value)
        for step, value in ((0, 60.0), (10, 20.0))
        for layer in range(3)
        for metric in ("effective_rank", "participation_ratio")
    ]
    frame = to_frame([row if row.metric == "effective_rank" else replace(row, value=60.0) for row in rows])
    figure = steps_overview(frame, "spectrum", find_alerts(frame))
    of_panels = {panel.get_title(loc="left"): marks(panel) for panel in figure.axes}
    assert of_panels == {"Effective rank": [(10.0, 1.0)], "Participation ratio": []}
    assert caption(figure)[-1].endswith(MARKED)


def test_the_colour_of_alerts_is_unique():
    from matplotlib import colormaps

    from repdyn.tables import style

    others = [*style.SUBSET_COLOURS, style.LOSS_COLOUR]
    assert ALERT_COLOUR not in others
    distances = np.abs(colormaps[style.SEQUENTIAL].colors - np.array(to_rgba(ALERT_COLOUR)[:3])).max(axis=1)
    assert distances.min() > 0.3


def test_the_summary_lists_the_first_alerts(run):
    stream = io.StringIO()
    frame = run(steps=range(0, 100, 10), n_blocks=2, dimension=lambda step, depth: 9.0 if step % 20 else 3.0)
    print_summary(frame, alerts=find_alerts(frame), console=Console(file=stream, width=160))
    said = [line for line in stream.getvalue().splitlines() if "alert" in line]
    assert [line.partition(",")[0] for line in said[:3]] == ["alert at step 20", "alert at step 40", "alert at step 60"]
    assert said[3].rstrip() == "and 1 more alerts, which repdyn alerts lists"


def printed(store, **given):
    stream = io.StringIO()
    number = print_alerts(store, console=Console(file=stream, width=200), **given)
    return number, stream.getvalue().splitlines()


@pytest.mark.slow
def test_the_rules_of_a_run_are_used_for_its_store(filled, published, tmp_path):
    store = filled(tmp_path, published("lab/a", steps=STEPS, dimension=collapsing), published("lab/b", steps=STEPS))
    assert printed(store)[0] == 1
    write_rules((), store.alerts_path("lab/a"))
    number, lines = printed(store)
    assert number == 0
    assert lines[0].endswith(": no alert; 4 checkpoints, 0 rules")
    assert printed(store, rules=RULES)[0] == 1


@pytest.mark.slow
def test_figures_and_summary_of_a_store_follow_its_rules(filled, published, tmp_path, monkeypatch, capsys):
    store = filled(tmp_path / "store", published("lab/a", steps=STEPS, dimension=collapsing))
    seen = []
    monkeypatch.setattr("repdyn.figures.run.all_figures", lambda rows, attempt, alerts: seen.append(alerts) or {})
    show_run(store, "lab/a")
    show_store(store)
    assert [{alert.rule for alert in alerts} for alerts in seen] == [{"dimension halved"}] * 2
    assert capsys.readouterr().out.count("alert at step 20, dimension halved") == 2


@pytest.mark.extended
@pytest.mark.slow
def test_a_run_with_unreadable_rules_is_shown(filled, published, tmp_path, capsys, caplog):
    store = filled(tmp_path / "store", published("lab/a", steps=STEPS, n_blocks=2, dimension=collapsing))
    store.alerts_path("lab/a").write_text("- {name: a, when: [above], metrics: [two_nn]}")
    show_run(store, "lab/a")
    assert "alert at step 20, dimension halved" in capsys.readouterr().out
    assert "using the default rules, because those of the run cannot be read: " in caplog.text
    assert printed(store)[0] == 1


def test_a_value_after_an_infinite_one():
    rows = [make_scalar(step, value) for step, value in ((0, math.inf), (10, math.inf), (20, 2.0), (30, math.inf))]
    rule = Rule(name="edge", when="below", bound=3.0, metrics=("train/loss",))
    rise = Rule(name="rise", when="rises", bound=2.0, metrics=("train/loss",))
    assert alert_lines(find_alerts(to_frame(rows), [rule, rise])) == [
        "step 20, edge: train/loss fell below 3: inf at step 10, now 2",
        "step 30, rise: train/loss rose to 2 times what it was or more: 2 at step 20, now inf",
    ]


def test_alerts_on_a_subset(collapsed):
    _, alerts = collapsed
    assert len(alerts_on(alerts, "two_nn", "all")) == len(alerts_on(alerts, "two_nn")) == 4
    assert alerts_on(alerts, "two_nn", "no_sink") == alerts_on(alerts, "anisotropy") == []
