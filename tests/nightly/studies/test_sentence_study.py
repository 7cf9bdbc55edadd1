"""``repdyn study sentences``: its files, its vectors, and the study from saved models to tables and figures."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from test_studies import GROUPS, ran
from transformers import AutoModel, AutoTokenizer, T5Config, T5Model

from repdyn.data.tokens import byte_tokenizer
from repdyn.studies.sentence_measurements import FIRST, LAST, MAXIMUM, MEAN


def test_the_tables_hold_the_model_s_own_numbers(save_model, files, tmp_path, drawn):
    folder = save_model("small")
    ran(folder, *files, "-o", tmp_path / "out")
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    vectors_ = []
    for group in GROUPS.values():
        for text in group:
            with torch.no_grad():
                states = model(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
            vectors_.append(states.double().mean(0).numpy())
    unit = np.stack(vectors_) / np.linalg.norm(vectors_, axis=1, keepdims=True)
    names = [name for name, group in GROUPS.items() for _ in group]
    within = [unit[a] @ unit[b] for a in range(8) for b in range(a) if names[a] == names[b]]
    table = pd.read_csv(tmp_path / "out" / "small" / "separation.csv")
    [found] = table.query(f"layer == 2 and vector == '{MEAN}'")["within"]
    assert found == pytest.approx(np.mean(within), rel=1e-4)


def test_each_stack_of_an_encoder_decoder(files, tmp_path, drawn, capsys):
    torch.manual_seed(0)
    T5Model(
        T5Config(
            **{"vocab_size": 300, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_decoder_layers": 1},
            **{"num_heads": 2, "decoder_start_token_id": 0},
        )
    ).save_pretrained(tmp_path / "t5")
    byte_tokenizer().save_pretrained(tmp_path / "t5")
    ran(tmp_path / "t5", *files, "-o", tmp_path / "out")
    [names] = drawn
    assert {"separation_encoder", "separation_decoder", "changes_encoder", "collection_decoder"} <= names
    table = pd.read_csv(tmp_path / "out" / "t5" / "separation.csv")
    assert set(table.query("stack == 'encoder'")["vector"]) == {FIRST, MEAN, LAST, MAXIMUM}
    assert set(table.query("stack == 'decoder'")["vector"]) == {MEAN, LAST, MAXIMUM}
