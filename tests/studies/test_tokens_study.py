"""``repdyn study tokens``: its functions against naive ones, and the command from a saved model to its files."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, normalize
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModel,
    BertTokenizer,
    GPT2Config,
    GPT2Model,
    MambaConfig,
    MambaModel,
    PreTrainedTokenizerFast,
)

from repdyn.capture.capture import causality
from repdyn.capture.prepared_model import prepare
from repdyn.cli.main import main
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.kernels.vocabulary import Vocabulary
from repdyn.studies.models import LoadedModel
from repdyn.studies.tokens.sentences import (
    capture_sentence,
    compare_sentence,
    embedding_scale,
    encode_sentence,
    position_rows,
    sentence_probe,
    without_causal_mask,
)
from repdyn.studies.tokens.text import class_rows, common_direction, density, higher_share
from repdyn.studies.tokens.vocabulary_comparison import LayerVectors, compare_with_vocabulary, token_names

SENTENCE = "The £1 coin"


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ran(*arguments):
    main(["study", "tokens", *map(str, arguments)])


@pytest.fixture
def subject(save_model):
    folder = save_model("bert")
    return LoadedModel("bert", AutoModel.from_pretrained(folder).eval(), byte_tokenizer())


@pytest.fixture
def decoder(save_model):
    return LoadedModel("gpt", AutoModel.from_pretrained(save_model("gpt", "gpt2")).eval(), byte_tokenizer())


@pytest.fixture
def text(tmp_path):
    """Function words and content words."""
    path = tmp_path / "text.txt"
    words = ["the", "of", "and", "river", "stone", "walk", "green", "because", "under", "house"]
    path.write_text(" ".join(np.random.default_rng(0).choice(words, 2000)))
    return path


# a sentence


@pytest.mark.parametrize("positions", [False, True], ids=["", "positions"])
def test_trajectories_against_naive_ones(positions):
    table, ids = random(40, 8), [3, 7, 3, 39, 0]
    added = random(5, 8, seed=1) if positions else None
    layers = [
        LayerVectors(None, layer, state, random(5, 8, seed=10 * layer + number) + table[ids])
        for layer in range(3)
        for number, state in enumerate(("attention", "block"))
    ]
    found = compare_with_vocabulary(layers, ids, table, byte_tokenizer(), k=4, positions=added)
    lines, near = found.table.to_dict("records"), found.nearest.to_dict("records")
    assert len(lines) == 6 * 5
    assert len(near) == 6 * 5 * 4
    for number, line in enumerate(lines):
        layer, place = layers[number // 5], number % 5
        assert (line["layer"], line["state"], line["position"]) == (layer.layer, layer.state, place)
        assert (line["token_id"], line["token"]) == (ids[place], found.tokens[place])
        rows = table.double() + (added[place].double() if positions else 0)
        cosines = cosine_similarity(layer.vectors[place].double(), rows, dim=1)
        assert line["cosine"] == pytest.approx(cosines[ids[place]].item(), rel=1e-10)
        assert line["rank"] == (cosines > cosines[ids[place]] + 1e-12).sum()
        best = near[4 * number : 4 * number + 4]
        assert [one["nearest_id"] for one in best] == cosines.topk(4).indices.tolist()
        assert [one["place"] for one in best] == [1, 2, 3, 4]
        assert [one["cosine"] for one in best] == pytest.approx(cosines.topk(4).values.tolist(), rel=1e-10)


def test_the_states_are_those_of_a_plain_run(subject):
    captured = capture_sentence(subject, SENTENCE)
    found = compare_sentence(subject, captured, k=3)
    model, ids = subject.model, encode_sentence(subject, SENTENCE)
    sums = []
    for block in model.encoder.layer:
        norm = block.attention.output.LayerNorm
        norm.register_forward_pre_hook(lambda _module, given: sums.append(given[0][0]))
    with torch.no_grad():
        hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    expected = {("block", layer): states[0] for layer, states in enumerate(hidden)}
    expected |= {("attention", layer): states for layer, states in enumerate(sums, start=1)}
    own = model.embeddings.word_embeddings.weight[ids]
    assert captured.reasons == ()
    assert len(found.table) == len(ids) * len(expected)
    for (state, layer), lines in found.table.groupby(["state", "layer"]):
        cosines = cosine_similarity(expected[state, layer], own, dim=1).tolist()
        assert lines["cosine"].tolist() == pytest.approx(cosines, rel=1e-4)


def test_a_position_is_added_to_every_row(subject):
    found = compare_sentence(subject, capture_sentence(subject, SENTENCE), k=3, with_positions=True)
    embeddings, ids = subject.model.embeddings, encode_sentence(subject, SENTENCE)
    added = embeddings.position_embeddings.weight[: len(ids)]
    with torch.no_grad():
        entering = embeddings(torch.tensor([ids]))[0].double()
        rows = embeddings.word_embeddings.weight.double()[None] + added.double()[:, None]
    cosines = cosine_similarity(entering[:, None], rows, dim=2)
    own = cosines[torch.arange(len(ids)), ids]
    lines = found.table[found.table["layer"] == 0]
    assert lines["cosine"].tolist() == pytest.approx(own.tolist(), rel=1e-4)
    assert lines["rank"].tolist() == (cosines > own[:, None]).sum(1).tolist()


def test_positions_of_a_family_that_begins_with_the_second_row(save_model):
    model = AutoModel.from_pretrained(save_model("roberta", "roberta", pad_token_id=1)).eval()
    subject = LoadedModel("roberta", model, byte_tokenizer())
    table = model.embeddings.word_embeddings.weight.detach()
    assert torch.equal(position_rows(subject, table, 5), model.embeddings.position_embeddings.weight[2:7])


class Scaled(nn.Embedding):
    def forward(self, input):
        return super().forward(input) * 4.0


def test_an_embedding_that_is_scaled_is_scaled_before_positions_are_added(subject):
    table = subject.model.embeddings.word_embeddings.weight.detach()
    assert embedding_scale(subject.model, table, [1, 2, 3]) == 1.0
    scaled = Scaled(*table.shape)
    scaled.weight = nn.Parameter(table)
    subject.model.embeddings.word_embeddings = scaled
    assert embedding_scale(subject.model, table, [1, 2, 3]) == pytest.approx(4.0)


@pytest.mark.parametrize("n_tokens", [2, 3, 9])
def test_all_tokens_of_a_sentence_are_sampled(n_tokens):
    probe = sentence_probe(list(range(5, 5 + n_tokens)))
    sampled = set(probe.sample("sentence").ravel().tolist())
    assert set(range(n_tokens)) <= sampled
    assert probe.tokens[:n_tokens].tolist() == list(range(5, 5 + n_tokens))


def test_tokens_are_named_as_they_are_read(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "coin", "##s", "£1"]))
    pieces = BertTokenizer(str(tmp_path / "vocab.txt"))
    assert token_names(pieces, [2, 4, 5, 6, 3, 99, 4]) == ["[CLS]", "coin", "##s", "£1", "[SEP]", "#99", "coin"]
    of_bytes = PreTrainedTokenizerFast(tokenizer_object=byte_level(["a", "Ġcoin", "Â£", "£", "Ġ", "Â"]))
    names = token_names(of_bytes, list(range(6)))
    assert names[:3] == ["a", "▁coin", "£"]
    # a space alone and half a character have no better name than the vocabulary's
    assert names[4:] == ["Ġ", "Â"]


def byte_level(tokens):
    from tokenizers import Tokenizer, decoders, models

    made = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    made.decoder = decoders.ByteLevel()
    return made


# a text


def test_classes_against_naive_ones():
    table, ids = random(30, 6), torch.arange(20) % 30
    x = table[ids] + 1.5 * random(20, 6, seed=1)
    classes = {"function": torch.arange(0, 20, 2), "content": torch.tensor([1, 5, 7])}
    lines = class_rows(x, ids, Vocabulary(table), classes)
    cosines = normalize(x.double()) @ normalize(table.double()).T
    own = cosines[torch.arange(20), ids]
    ranks = (cosines > own[:, None] + 1e-12).sum(1).double()
    for line, (name, rows) in zip(lines, classes.items(), strict=True):
        assert (line["class"], line["tokens"]) == (name, len(rows))
        assert line["cosine"] == pytest.approx(own[rows].mean().item(), rel=1e-12)
        quartiles = [line["rank_q25"], line["rank"], line["rank_q75"]]
        assert quartiles == ranks[rows].quantile(torch.tensor([0.25, 0.5, 0.75]).double()).tolist()
        assert line["kept"] == (ranks[rows] == 0).double().mean()


def test_density_against_a_naive_one():
    table = random(60, 5)
    table[20:32] = table[20]  # more copies than neighbours
    table[50] = 0
    ids = torch.tensor([3, 20, 3, 50, 7, 59, 7, 7])
    is_function = torch.tensor([True, False, True, False, False, True, True, False])
    found = density(Vocabulary(table), ids, is_function)
    unit = normalize(table.double())
    assert found["token_id"].tolist() == [3, 7, 20, 59]
    assert found["count"].tolist() == [2, 3, 1, 1]
    assert found["class"].tolist() == ["function", "content", "content", "function"]
    for line in found.to_dict("records"):
        cosines = unit @ unit[line["token_id"]]
        cosines[[line["token_id"], 50]] = -2
        assert line["density"] == pytest.approx(cosines.topk(10).values.mean().item(), rel=1e-10)
        assert line["norm"] == pytest.approx(table[line["token_id"]].double().norm().item(), rel=1e-12)


def test_higher_share_counts_pairs():
    values, others = np.array([1.0, 2.0, 2.0, 5.0]), np.array([2.0, 4.0, 0.0])
    pairs = [(v > o) + (v == o) / 2 for v in values for o in others]
    assert higher_share(values, others) == pytest.approx(np.mean(pairs))


def test_common_direction_against_all_pairs():
    before, after = random(12, 5), random(12, 5, seed=1) + 0.7
    after[4] = before[4]  # does not move
    sequences = torch.tensor([4, 4, 4, 9, 9, 9, 9, 11, 4, 4, 9, 30])
    within, between = common_direction(before, after, sequences)
    units = normalize((after - before).double())
    moved = [place for place in range(12) if place != 4]
    pairs = [(a, b) for a in moved for b in moved if a != b]
    for found, same in ((within, True), (between, False)):
        cosines = [float(units[a] @ units[b]) for a, b in pairs if bool(sequences[a] == sequences[b]) is same]
        assert found == pytest.approx(np.mean(cosines), rel=1e-6)


def test_tokens_that_all_move_alike_and_none_that_do():
    before = random(6, 4)
    same = common_direction(before, before + torch.tensor([1.0, 2, 3, 4]), torch.tensor([0, 0, 0, 1, 1, 1]))
    assert same == pytest.approx((1, 1), rel=1e-6)
    within, between = common_direction(before, before + 1, torch.arange(6))
    assert math.isnan(within)
    assert between == pytest.approx(1, rel=1e-6)


# a causal mask taken off


def test_the_causal_mask_is_taken_off_and_put_back(decoder):
    probe = sentence_probe(encode_sentence(decoder, SENTENCE))
    before = decoder.model.config.to_dict()
    with without_causal_mask(decoder, SENTENCE):
        assert causality(prepare(decoder.model), probe) == {None: False}
    assert causality(prepare(decoder.model), probe) == {None: True}
    assert decoder.model.config.to_dict() == before


def test_an_encoder_has_no_mask_to_take_off(subject):
    with (
        pytest.raises(
            ValueError,
            match="expected a decoder with --no-causal-mask, got bert, whose positions see later ones already or cannot be tested; leave the option out",
        ),
        without_causal_mask(subject, SENTENCE),
    ):
        pass


def test_a_decoder_that_keeps_its_mask_is_refused():
    model = MambaModel(MambaConfig(hidden_size=16, num_hidden_layers=2, state_size=4, vocab_size=260)).eval()
    with (
        pytest.raises(
            ValueError,
            match="expected a decoder whose causal mask transformers can take off, but mamba keeps it; leave --no-causal-mask out",
        ),
        without_causal_mask(LoadedModel("mamba", model, byte_tokenizer()), SENTENCE),
    ):
        pass
    assert "is_causal" not in vars(model.config)


# the command


def test_two_models(save_model, tmp_path, capsys):
    out = tmp_path / "out"
    ran(save_model("a"), save_model("b", "gpt_neox"), "--sentence", SENTENCE, "--nearest", 2, "-o", out)
    figures = {f"{name}.{kind}" for name in ("cosine", "rank", "heatmap") for kind in ("png", "svg")}
    for name in ("a", "b"):
        assert {path.name for path in (out / name).iterdir()} == figures | {"tokens.csv", "nearest.csv"}
    tokens = pd.read_csv(out / "b" / "tokens.csv")
    n_tokens = tokens["position"].nunique()
    assert tokens.groupby(["state", "layer"], sort=False).size().to_dict() == {
        ("block", 0): n_tokens,
        ("attention", 1): n_tokens,
        ("block", 1): n_tokens,
        ("attention", 2): n_tokens,
        ("block", 2): n_tokens,
    }
    assert tokens.loc[tokens["layer"] == 0, "rank"].eq(0).all()
    assert len(pd.read_csv(out / "b" / "nearest.csv")) == 2 * len(tokens)
    printed = capsys.readouterr().out
    assert "a: rank of each token's own embedding among the input embeddings" in printed
    assert "token  layer 0  layer 1  layer 2" in printed


def test_a_text(save_model, text, tmp_path, capsys):
    out = tmp_path / "out"
    given = ["--text", text, "--sequence-length", 32, "--max-vectors", 512]
    ran(save_model("a"), *given, "--sentence", SENTENCE, "-o", out)
    names = ["cosine", "rank", "heatmap", "classes", "steps", "density"]
    tables = {"tokens.csv", "nearest.csv", "classes.csv", "steps.csv", "density.csv"}
    figures = {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert {path.name for path in (out / "a").iterdir()} == tables | figures
    classes = pd.read_csv(out / "a" / "classes.csv")
    assert classes["class"].tolist() == ["function", "content"] * 5
    assert classes["cosine"].between(-1, 1).all()
    steps = pd.read_csv(out / "a" / "steps.csv")
    assert steps["layer"].tolist() == [0, 1]
    crowded = pd.read_csv(out / "a" / "density.csv")
    assert crowded["density"].between(-1, 1).all()
    printed = capsys.readouterr().out
    assert "mean cosine of two tokens' steps: of one sequence " in printed
    assert "the embedding of a function word is in the denser place in " in printed


def test_again_gives_the_same_files(save_model, text, tmp_path):
    folder = save_model("a")
    for name in ("one", "two"):
        ran(folder, "--text", text, "--sequence-length", 32, "--max-vectors", 128, "-o", tmp_path / name)
    for path in (tmp_path / "one" / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / "a" / path.name).read_bytes(), path.name


def test_without_the_mask_there_is_a_second_folder(save_model, tmp_path):
    out = tmp_path / "out"
    ran(save_model("a", "llama"), "--no-causal-mask", "--sentence", SENTENCE, "-o", out)
    with_mask, without = (pd.read_csv(out / name / "tokens.csv") for name in ("a", "a-no-causal-mask"))
    last = with_mask["position"].max()
    same = with_mask["cosine"] == without["cosine"]
    # the last token sees all tokens either way, in the first block; the first one does not
    assert same[(with_mask["position"] == last) & (with_mask["layer"] == 1) & (with_mask["state"] == "attention")].all()
    assert not same[(with_mask["position"] == 0) & (with_mask["layer"] == 1)].any()


def test_both_stacks_of_an_encoder_decoder(tmp_path):
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=260, decoder_start_token_id=0)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    byte_tokenizer().save_pretrained(tmp_path / "t5")
    ran(tmp_path / "t5", "--sentence", SENTENCE, "-o", tmp_path / "out")
    written = {path.stem for path in (tmp_path / "out" / "t5").iterdir()}
    stacks = ("encoder", "decoder")
    assert written == {"tokens", "nearest", *(f"{s} {f}" for s in stacks for f in ("cosine", "rank", "heatmap"))}


def test_blocks_without_attention_are_told(tmp_path, capsys):
    MambaModel(MambaConfig(hidden_size=16, num_hidden_layers=2, state_size=4, vocab_size=260)).save_pretrained(
        tmp_path / "mamba"
    )
    byte_tokenizer().save_pretrained(tmp_path / "mamba")
    ran(tmp_path / "mamba", "--sentence", SENTENCE, "-o", tmp_path / "out")
    expected = "no state after attention at layer 1: no part of the block is named attention and 1 more"
    assert expected in capsys.readouterr().out
    assert set(pd.read_csv(tmp_path / "out" / "mamba" / "tokens.csv")["state"]) == {"block"}


@pytest.mark.real_data
def test_a_trained_decoder_leaves_its_tokens(tmp_path):
    folder = Path(os.environ.get("REPDYN_DATA", "")) / "stories260K-hf"
    if not folder.is_dir():
        pytest.skip("no trained weights; set REPDYN_DATA")
    ran(folder, "-o", tmp_path)
    tokens = pd.read_csv(tmp_path / "stories260K-hf" / "tokens.csv")
    blocks = tokens[tokens["state"] == "block"]
    medians = blocks.groupby("layer")["rank"].median().tolist()
    assert medians == sorted(medians)
    assert medians[:3] == [0, 0, 0]
    assert medians[-1] > 10
    # the two bytes of a character that its stories lack
    assert blocks.loc[(blocks["layer"] == 2) & blocks["token"].str.startswith("<0x"), "rank"].tolist() == [225, 254]
    nearest = pd.read_csv(tmp_path / "stories260K-hf" / "nearest.csv")
    last = nearest[(nearest["layer"] == 5) & (nearest["state"] == "block") & (nearest["place"] == 1)]
    assert last.loc[last["token"] == "<s>", "nearest"].tolist() == ["▁Once"]


def saved(model, folder):
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def albert():
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return AlbertModel(AlbertConfig(**sizes, embedding_size=8, vocab_size=260, max_position_embeddings=64))


def gpt2():
    return GPT2Model(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=260, n_positions=12))


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (
            albert,
            [],
            "expected vectors that can be compared with the input embeddings of model, but the input embeddings have 8 dimensions, the vectors 16",
        ),
        (gpt2, ["--sentence", ""], "expected a sentence of 2 or more tokens for model, got 0"),
        (gpt2, ["--sentence", "much too long a sentence"], "expected a sentence of 2 to 12 tokens for model, got 24"),
        (
            gpt2,
            ["--nearest", 1000, "--sentence", "abc"],
            "expected k from 1 to the 260 rows that are not zero, got 1000",
        ),
    ],
    ids=["dimensions", "nothing", "too long", "too many"],
)
def test_mistakes_are_refused_by_name(make, given, message, tmp_path, capsys):
    folder = saved(make(), tmp_path / "model")
    with pytest.raises(SystemExit):
        ran(folder, *given, "-o", tmp_path / "out")
    assert message in capsys.readouterr().err


def test_a_model_without_positions_in_a_table(save_model, tmp_path, capsys):
    with pytest.raises(SystemExit):
        ran(save_model("a", "llama"), "--positions", "--sentence", SENTENCE, "-o", tmp_path / "out")
    assert (
        "expected one table of positions with 16 dimensions for --positions, got none in a; leave the option out"
        in capsys.readouterr().err
    )
