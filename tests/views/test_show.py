import io

import pytest
from lightning.pytorch.loggers import CSVLogger
from rich.console import Console

from repdyn.views.show import show_run, show_store

NAMES = ("profile_anisotropy", "profile_two_nn", "mean_over_layers", "heatmap_anisotropy_all")


@pytest.fixture
def unpainted(monkeypatch):
    """Figures are made but their files stay empty, for tests that ask where they go."""

    def save(figures, folder):
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / f"{name}.{kind}" for name in figures for kind in ("png", "svg")]
        for path in written:
            path.touch()
        return written

    monkeypatch.setattr("repdyn.views.figures.save", save)
    monkeypatch.setattr("repdyn.views.comparison.save", save)


def shown(store, *arguments, **given):
    stream = io.StringIO()
    written = show_store(store, *arguments, console=Console(file=stream, width=80), **given)
    return stream.getvalue(), written


def folders(written, store):
    return sorted({path.parent.relative_to(store.path).as_posix() for path in written})


def test_a_live_run_has_its_figures_in_the_store_itself(published, filled, tmp_path, capsys):
    live = published("lab/a", steps=(0, 8), checkpoint=None)
    store = filled(tmp_path, live)
    written = show_run(store, "lab/a")
    assert folders(written, store) == ["figures"]
    assert {f"{name}.png" for name in NAMES} <= {path.name for path in written}
    text = capsys.readouterr().out
    assert text.startswith("lab/a  GPTNeoXForCausalLM (decoder)")
    again, files = shown(store)
    assert files == written
    assert again.strip() == text.strip()


def test_a_swept_run_has_a_folder_of_its_own_for_others_will_follow(published, filled, tmp_path, unpainted):
    store = filled(tmp_path, published("lab/a", steps=(0, 8)))
    assert folders(show_run(store, "lab/a"), store) == ["figures/lab%2Fa"]


def test_several_runs_have_a_folder_each(published, filled, tmp_path, unpainted):
    store = filled(tmp_path, published("lab/a", steps=(0, 8)), published("lab/b", steps=(0, 8)))
    assert folders(show_run(store, "lab/a"), store) == ["figures/lab%2Fa"]


def test_probes_of_one_run_do_not_overwrite_each_other(published, filled, tmp_path):
    store = filled(tmp_path, published("lab/a", probe="one"), published("lab/a", probe="two", n_blocks=2))
    first = {path: path.read_bytes() for path in show_run(store, "lab/a", probe="one")}
    second = show_run(store, "lab/a", probe="two")
    assert folders([*first, *second], store) == ["figures/lab%2Fa/one", "figures/lab%2Fa/two"]
    assert all(path.read_bytes() == content for path, content in first.items())
    with pytest.raises(ValueError, match="^expected the rows of one probe, got 2"):
        show_run(store, "lab/a")


def test_a_failure_on_another_probe_is_no_second_probe(published, failures, filled, tmp_path, unpainted):
    store = filled(tmp_path, published("lab/a", steps=(0,), probe="one"), failures(8, run="lab/a", probe="two"))
    assert folders(show_run(store, "lab/a", probe="one"), store) == ["figures/lab%2Fa"]


def test_loggers_without_pictures_cost_nothing(published, filled, tmp_path, monkeypatch, unpainted):
    store = filled(tmp_path / "store", published("lab/a", steps=(0, 8)))
    drawn = []
    monkeypatch.setattr("repdyn.views.show.all_figures", lambda frame: drawn.append(frame) or {})
    show_run(store, "lab/a")
    assert not drawn
    show_run(store, "lab/a", loggers=[CSVLogger(tmp_path, name="", version="")])
    assert len(drawn) == 1


def test_a_few_runs_have_a_summary_each_and_a_comparison(published, finished, filled, tmp_path, unpainted):
    store = filled(tmp_path, published("lab/a", steps=(0, 8)), finished("lab/bert"))
    text, written = shown(store)
    assert folders(written, store) == ["figures/comparison", "figures/lab%2Fa", "figures/lab%2Fbert"]
    assert all(path.exists() for path in written)
    assert "lab/a  GPTNeoXForCausalLM (decoder)" in text
    assert "lab/bert  BertModel (encoder)" in text
    assert text.index("lab/bert  BertModel") < text.index("model kind size done")
    assert "comparison: 6 files in" in text


def test_many_runs_have_a_line_each(published, filled, tmp_path, unpainted):
    store = filled(tmp_path, *(published(f"lab/{name}", steps=(0, 8), n_blocks=2) for name in "abcd"))
    text, written = shown(store)
    assert len(folders(written, store)) == 5
    for name in "abcd":
        (line,) = [line for line in text.splitlines() if line.startswith(f"lab/{name}: ")]
        assert line == f"lab/{name}: 12 files in {tmp_path}/figures/lab%2F{name}"
    assert "GPTNeoX" not in text
    assert "shape  bell-shaped" in text


def test_some_runs_and_another_folder(published, filled, tmp_path, unpainted):
    store = filled(tmp_path / "s", *(published(f"lab/{name}", steps=(0, 8), n_blocks=2) for name in "abc"))
    text, written = shown(store, ["lab/a", "lab/c"], folder=tmp_path / "o")
    assert sorted({path.parent.name for path in written}) == ["comparison", "lab%2Fa", "lab%2Fc"]
    assert {path.parents[1] for path in written} == {tmp_path / "o"}
    assert "lab/b" not in text
    assert not (store.path / "figures").exists()


def test_a_run_that_only_failed_is_said_and_left_out(published, failures, filled, tmp_path, unpainted):
    store = filled(tmp_path, published("lab/a", steps=(0,)), failures(8, "gated", run="lab/b"))
    text, written = shown(store)
    assert "lab/b: nothing measured, 1 checkpoint failed: step 8: gated; --retry-failed tries again" in text
    assert folders(written, store) == ["figures/lab%2Fa"]


def test_a_store_of_failures_alone(failures, filled, tmp_path):
    text, written = shown(filled(tmp_path, failures(8, "gated", run="lab/b")))
    assert text.startswith("lab/b: nothing measured")
    assert not written


def test_several_probes_are_shown_one_by_one_and_not_compared(published, filled, tmp_path, unpainted):
    store = filled(
        tmp_path,
        published("lab/a", steps=(0, 8), probe="one"),
        published("lab/a", steps=(0, 8), probe="two"),
        published("lab/b", steps=(0, 8), probe="one"),
    )
    text, written = shown(store)
    assert folders(written, store) == ["figures/lab%2Fa/one", "figures/lab%2Fa/two", "figures/lab%2Fb"]
    assert text.endswith("not compared: several probes of lab/a; choose one with --probe HASH\n")
    _, chosen = shown(store, probe="one")
    assert folders(chosen, store) == ["figures/comparison", "figures/lab%2Fa/one", "figures/lab%2Fb"]


def test_runs_that_do_not_compare_have_a_table_and_no_pictures(published, filled, tmp_path, unpainted):
    store = filled(tmp_path, published("lab/a", steps=(0,)), published("lab/b", steps=(0,), n_vectors=512))
    text, written = shown(store)
    assert "these values do not compare" in text
    assert folders(written, store) == ["figures/lab%2Fa", "figures/lab%2Fb"]
