import io

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from logged_runs import BrokenBoard
from matplotlib.figure import Figure
from rich.console import Console
from synthetic_runs import DENSE
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from repdyn.views.figures.run import heatmap
from repdyn.views.publish.results import show_run, show_store

NAMES = ("profile_anisotropy", "profile_two_nn", "mean_over_layers", "heatmap_anisotropy_all")


@pytest.fixture
def unpainted(monkeypatch):
    """Figures are made but their files stay empty, for tests that ask where they go."""

    def save(figures, folder, attempt, formats=(".png", ".svg")):
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / f"{name}{kind}" for name in figures for kind in formats]
        for path in written:
            path.touch()
        return written

    monkeypatch.setattr("repdyn.views.charts.on_matplotlib.save", save)


def shown(store, *arguments, **options):
    stream = io.StringIO()
    written = show_store(store, *arguments, console=Console(file=stream, width=80), **options)
    return stream.getvalue(), written


def folders(written, store):
    return sorted({path.parent.relative_to(store.path).as_posix() for path in written})


def board(folder, version="board"):
    return TensorBoardLogger(folder, name="", version=version)


def images(logger):
    logger.finalize("success")
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    return set(events.Tags()["images"])


def test_a_live_run_has_its_figures_in_the_store_itself(published, filled, tmp_path, capsys):
    live = published("lab/a", steps=(0, 8), checkpoint=None)
    store = filled(tmp_path, live)
    written = show_run(store, "lab/a")
    assert folders(written, store) == ["figures"]
    assert {f"{name}.png" for name in NAMES} <= {path.name for path in written}
    text = capsys.readouterr().out
    assert text.startswith("lab/a  GPTNeoXForCausalLM (decoder)")
    again, files = shown(store)
    assert [path for path in files if path.suffix == ".png"] == written
    assert text.startswith(again.replace("(12 files)", "(6 files)").rstrip())
    assert f"next: repdyn insights {store.path}" in text.replace("\n", "")


def test_several_runs_have_a_folder_each(published, filled, tmp_path, unpainted):
    store = filled(tmp_path, published("lab/a", steps=(0, 8)), published("lab/b", steps=(0, 8)))
    assert folders(show_run(store, "lab/a"), store) == ["figures/lab_a"]


def test_probes_of_one_run_do_not_overwrite_each_other(published, filled, tmp_path):
    store = filled(
        tmp_path, published("lab/a", probe="one"), published("lab/a", probe="two", n_blocks=2)
    )
    first = {path: path.read_bytes() for path in show_run(store, "lab/a", probe="one")}
    second = show_run(store, "lab/a", probe="two")
    assert folders([*first, *second], store) == ["figures/lab_a/one", "figures/lab_a/two"]
    assert all(path.read_bytes() == content for path, content in first.items())
    with pytest.raises(ValueError, match="^expected the rows of one probe, got 2"):
        show_run(store, "lab/a")


def test_a_figure_is_drawn_once_for_its_file_and_the_loggers(
    published, filled, tmp_path, monkeypatch, unpainted
):
    store = filled(tmp_path / "store", published("lab/a", steps=(0, 8)))
    drawn = []

    def draw(run, metric, subset, *_):
        drawn.append((metric, subset))
        return Figure()

    monkeypatch.setattr("repdyn.views.figures.run.heatmap", draw)
    show_run(store, "lab/a", loggers=[CSVLogger(tmp_path, name="", version=""), board(tmp_path)])
    assert drawn == [("anisotropy", "all"), ("anisotropy", "no_sink"), ("two_nn", "all")]


def test_a_few_runs_have_a_summary_each_and_a_comparison(
    published, finished, filled, tmp_path, unpainted
):
    store = filled(tmp_path, published("lab/a", steps=(0, 8)), finished("lab/bert"))
    text, written = shown(store)
    assert folders(written, store) == ["figures/comparison", "figures/lab_a", "figures/lab_bert"]
    assert all(path.exists() for path in written)
    assert "lab/a  GPTNeoXForCausalLM (decoder)" in text
    assert "lab/bert  BertModel (encoder)" in text
    assert text.index("lab/bert  BertModel") < text.index("model kind size done")
    assert "comparison: 6 files in" in text


def test_a_run_that_only_failed_is_said_and_left_out(
    published, failures, filled, tmp_path, unpainted
):
    store = filled(tmp_path, published("lab/a", steps=(0,)), failures(8, "gated", run="lab/b"))
    text, written = shown(store)
    assert (
        "lab/b: nothing measured, 1 checkpoint failed: step 8: gated; --retry-failed tries again"
        in text
    )
    assert folders(written, store) == ["figures/lab_a"]


def test_several_probes_of_a_run_are_runs_of_a_comparison(published, filled, tmp_path, unpainted):
    store = filled(
        tmp_path,
        published("lab/a", steps=(0, 8), probe="one"),
        published("lab/a", steps=(0, 8), probe="two", **DENSE),
        published("lab/b", steps=(0, 8), probe="one"),
    )
    text, written = shown(store)
    assert folders(written, store) == ["figures/lab_a/one", "figures/lab_a/two", "figures/lab_b"]
    assert "these values do not compare, different sampling designs" in " ".join(text.split())
    assert "(probe one, design independent), b), dense (a (probe two, design dense))" in " ".join(
        text.split()
    )
    _, chosen = shown(store, probe="one")
    assert folders(chosen, store) == ["figures/comparison", "figures/lab_a/one", "figures/lab_b"]


def test_runs_that_do_not_compare_have_a_table_and_no_pictures(
    published, filled, tmp_path, unpainted
):
    store = filled(
        tmp_path, published("lab/a", steps=(0,)), published("lab/b", steps=(0,), n_vectors=512)
    )
    text, written = shown(store)
    assert "these values do not compare" in text
    assert folders(written, store) == ["figures/lab_a", "figures/lab_b"]


def test_each_stack_of_a_model_is_shown_for_itself_and_beside_the_other(
    two_stacks, filled, tmp_path, capsys
):
    store = filled(tmp_path / "store", two_stacks("quick/1", steps=(0, 8)))
    logger = board(tmp_path)
    written = show_run(store, "quick/1", loggers=[logger], spent=lambda: {"tracking_seconds": 8.1})
    assert folders(written, store) == ["figures/comparison", "figures/decoder", "figures/encoder"]
    names = {path.stem for path in written if path.parent.name == "encoder"}
    assert set(NAMES) < names == {path.stem for path in written if path.parent.name == "decoder"}
    assert images(logger) == {
        f"figures/{stack}/{name}" for stack in ("encoder", "decoder") for name in names
    }
    text = capsys.readouterr().out
    heads = (
        "encoder)  T5ForConditionalGeneration (encoder)",
        "decoder)  T5ForConditionalGeneration (decoder)",
    )
    encoder, decoder = (text.index(f"quick/1 ({head}") for head in heads)
    table = text.index("kind size done")
    assert encoder < decoder < table
    assert f"figures: {store.path}/figures/encoder (6 files)" in text.replace("\n", "")
    assert text.count("tracking took 8.1 s") == 1
    again, files = shown(store)
    assert set(written) < set(files)
    assert text.replace("tracking took 8.1 s\n", "").startswith(
        again.replace("(12 files)", "(6 files)").rstrip()
    )


def test_a_stack_may_have_any_name(two_stacks, filled, tmp_path, unpainted):
    rows = [
        row.with_columns(stack=row.stack and f"../{row.stack}.blocks")
        for row in two_stacks("lab/t5", steps=(0, 8))
    ]
    store = filled(tmp_path, rows)
    assert folders(show_run(store, "lab/t5"), store) == [
        "figures/%2E._decoder.blocks",
        "figures/%2E._encoder.blocks",
        "figures/comparison",
    ]


@pytest.fixture
def broken_heatmap(monkeypatch):
    """One figure of two_nn cannot be drawn."""

    def draw(run, metric, subset):
        if metric == "two_nn":
            raise RuntimeError("no heatmap today")
        return heatmap(run, metric, subset)

    monkeypatch.setattr("repdyn.views.figures.run.heatmap", draw)


def test_a_figure_that_fails_keeps_nothing_else_from_a_run(
    two_stacks, filled, tmp_path, broken_heatmap, capsys
):
    store = filled(tmp_path / "store", two_stacks("quick/1", steps=(0, 8)))
    logger = board(tmp_path)
    with pytest.raises(RuntimeError, match="^no heatmap today$"):
        show_run(store, "quick/1", loggers=[logger])
    names = {
        path.relative_to(store.path / "figures").as_posix()
        for path in (store.path / "figures").rglob("*.png")
    }
    figures_of_stack = {*NAMES, "heatmap_anisotropy_no_sink"}
    compared = {
        f"comparison/{name}.png"
        for name in ("profiles_anisotropy", "profiles_two_nn", "means_over_layers")
    }
    assert (
        names
        == {f"{stack}/{name}.png" for stack in ("encoder", "decoder") for name in figures_of_stack}
        | compared
    )
    assert images(logger) == {
        f"figures/{stack}/{name}" for stack in ("encoder", "decoder") for name in figures_of_stack
    }
    text = capsys.readouterr().out
    assert "quick/1 (encoder)  T5" in text
    assert "quick/1 (decoder)  T5" in text
    assert "comparison: 6 files in" in text


def test_a_logger_that_fails_keeps_nothing_else_from_a_run(published, filled, tmp_path, capsys):
    store = filled(tmp_path / "store", published("lab/a", steps=(0, 8), checkpoint=None))
    logger = board(tmp_path)
    with pytest.raises(ConnectionError, match="^the board is gone$"):
        show_run(store, "lab/a", loggers=[BrokenBoard(tmp_path), logger])
    assert {f"figures/{name}" for name in NAMES} < images(logger)
    assert len(list((store.path / "figures").iterdir())) == 6
    assert capsys.readouterr().out.startswith("lab/a  GPTNeoXForCausalLM (decoder)")
