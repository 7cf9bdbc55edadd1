"""``repdyn figures`` on seeds of one model: in one store, and in a store for each."""

import io

import pytest
from matplotlib.figure import Figure
from rich.console import Console
from synthetic_runs import fill, make_published

from repdyn.cli.main import main
from repdyn.views.publish.results import show_store


@pytest.fixture
def no_figures(monkeypatch):
    """Return the labels of the runs that figures were asked for."""
    labels = []

    def draw(runs, attempt):
        labels.append([run.label for run in runs])
        return {}

    monkeypatch.setattr("repdyn.views.figures.comparison.comparison_figures", draw)
    monkeypatch.setattr("repdyn.views.figures.run.all_figures", lambda *_: {})
    return labels


def seed(number, **given):
    fields = {"steps": (0, 32, 64), "n_blocks": 3, "probe": "0" * 16} | given
    curves = {"anisotropy": 0.2 + number / 30, "no_sink": 0.2, "dimension": float(number)}
    constant = {name: lambda step, depth, value=value: value for name, value in curves.items()}
    return make_published(f"lab/m-seed{number}", **constant, **fields)


def shown(show, *arguments, **options):
    stream = io.StringIO()
    files = show(*arguments, console=Console(file=stream, width=100), **options)
    return stream.getvalue(), files


def line_of(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return line.split()


def test_the_table_has_a_line_for_the_seeds(tmp_path, no_figures):
    store = fill(tmp_path / "store", seed(1), seed(3), seed(5))
    text, _ = shown(show_store, store)
    cells = line_of(text, "m (3 seeds)")[3:]
    # no seed grows, and a decoder is not judged as an encoder; so with all of them
    assert cells == ["dec", "1.2M", "3", "64", "0.30", "0.20", "3.00", *"??---"]
    assert no_figures == [["m (3 seeds)"]]


def test_runs_named_like_seeds_that_differ_are_compared_as_runs(tmp_path, no_figures):
    store = fill(tmp_path / "store", seed(1), seed(2, n_blocks=4))
    text, files = shown(show_store, store)
    assert (
        "warning: not shown as seeds of one model: expected runs that differ in their seed alone"
        in text
    )
    assert "different layers of" in text
    assert files == []
    assert no_figures == [["m-seed1", "m-seed2"]]
    with pytest.raises(ValueError, match="different layers of"):
        shown(show_store, store, seeds=["lab/m-seed*"])


def test_the_command_takes_several_stores_and_patterns(tmp_path, no_figures, monkeypatch, capsys):
    def draw(runs, attempt):
        no_figures.append([run.label for run in runs])
        return {"means": Figure((1, 1))}

    monkeypatch.setattr("repdyn.views.figures.comparison.comparison_figures", draw)
    paths = [str(fill(tmp_path / name, seed(number)).path) for number, name in ((1, "a"), (3, "b"))]
    main(["figures", *paths, "--seeds", "none"])
    assert "seeds)" not in capsys.readouterr().out
    main(["figures", *paths, "--seeds", "*-s*"])
    assert "*-s* (2 seeds)" in capsys.readouterr().out
    assert no_figures == [["m-seed1", "m-seed3"], ["*-s* (2 seeds)"]]
