"""Alerts where people look: in words, in the pictures, in the summary."""

import io

from rich.console import Console

from repdyn.alerts import Rule, find_alerts
from repdyn.figures.run import heatmap
from repdyn.publish.results import show_run, show_store
from repdyn.tables.style import ALERT_COLOUR
from repdyn.terminal.alerts import print_alerts

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


def test_a_whole_profile_is_marked_above_its_column(run):
    frame = run(
        steps=range(0, 60, 10), dimension=lambda step, depth: 9 * 1.05 ** (step / 10) * (2 if step == 50 else 1)
    )
    rule = Rule(name="jump", when="jumps", bound=5, metrics=("two_nn",))
    figure = heatmap(frame, "two_nn", "all", find_alerts(frame, [rule]))
    assert marks(figure.axes[0]) == [(5.0, 1.0)]


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


def printed(store, **given):
    stream = io.StringIO()
    number = print_alerts(store, console=Console(file=stream, width=200), **given)
    return number, stream.getvalue().splitlines()


def test_figures_and_summary_of_a_store_follow_its_rules(filled, published, tmp_path, monkeypatch, capsys):
    store = filled(tmp_path / "store", published("lab/a", steps=STEPS, dimension=collapsing))
    seen = []
    monkeypatch.setattr("repdyn.figures.run.all_figures", lambda rows, attempt, alerts: seen.append(alerts) or {})
    show_run(store, "lab/a")
    show_store(store)
    assert [{alert.rule for alert in alerts} for alerts in seen] == [{"dimension halved"}] * 2
    assert capsys.readouterr().out.count("alert at step 20, dimension halved") == 2


def test_a_run_with_unreadable_rules_is_shown(filled, published, tmp_path, capsys, caplog):
    store = filled(tmp_path / "store", published("lab/a", steps=STEPS, n_blocks=2, dimension=collapsing))
    store.alerts_path("lab/a").write_text("- {name: a, when: [above], metrics: [two_nn]}")
    show_run(store, "lab/a")
    assert "alert at step 20, dimension halved" in capsys.readouterr().out
    assert "using the default rules, because those of the run cannot be read: " in caplog.text
    assert printed(store)[0] == 1
