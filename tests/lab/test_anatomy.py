"""The study of anatomy: embedding tables, positions, and the paths of tokens."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.spatial.distance import pdist
from sklearn.decomposition import PCA
from studying import PAIR, numbers, run_study, told
from tokenizers import Tokenizer, models
from transformers import (
    AutoModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

import repdyn
from repdyn import layer_states
from repdyn.lab.studies import embedding_tables as tables
from repdyn.lab.studies import table_geometry as geometry
from repdyn.lab.studies.anatomy import followed
from repdyn.lab.studies.anatomy_figures import paths_figure
from repdyn.lab.studies.embedding_tables import (
    NO_POSITION,
    NO_TOKEN,
    UNUSED_TOKEN,
    EmbeddingTable,
    about_mean,
    closest_pairs,
    components_for,
    embedding_tables,
    explained_variance,
    norms,
    pair_values,
    sample_pairs,
)
from repdyn.lab.studies.panels import plane_table, planes
from repdyn.lab.studies.paths import (
    CLEAR,
    TokenTrajectory,
    by_offset,
    cosine_matrix,
    find_order_end,
    find_rotation,
    following_cosines,
    match_tokens,
    movements,
    principal,
)

RANDOM = np.random.default_rng(0)

pytestmark = pytest.mark.usefixtures("quick_images")  # how figures are written is tested elsewhere


def drawn(n: int, dim: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, dim))).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "within"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-12)]
)
def test_pair_values_against_scipy(dtype, within):
    rows = drawn(30, 7).to(dtype)
    wide = rows.double().numpy()
    values = pair_values(rows, sample_pairs(30))
    np.testing.assert_allclose(values["distance"], pdist(wide), rtol=within)
    np.testing.assert_allclose(values["cosine"], 1 - pdist(wide, "cosine"), rtol=1e-9, atol=within)
    np.testing.assert_allclose(
        values["dot"], (wide @ wide.T)[np.triu_indices(30, 1)], rtol=1e-9, atol=within
    )
    np.testing.assert_allclose(norms(rows), np.linalg.norm(wide, axis=1), rtol=within)


def test_relations_of_tables_against_all_pairs_by_hand():
    words = EmbeddingTable(
        name="input",
        kind="input",
        parameter="w",
        rows=drawn(40, 6),
        labels=tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"),
        left_out={},
    )
    places = EmbeddingTable(
        name="position",
        kind="position",
        parameter="p",
        rows=drawn(9, 6, seed=1),
        labels=tuple("012345678"),
        left_out={},
    )
    unit = [
        table.rows.numpy() / np.linalg.norm(table.rows.numpy(), axis=1)[:, None]
        for table in (words, places)
    ]
    within = [
        (unit[0][i] @ unit[0][j], words.labels[i], words.labels[j])
        for i in range(40)
        for j in range(i + 1, 40)
    ]
    extremes = geometry.extreme_pairs(
        words, tables.closest_pairs(words.rows, k=5, ends=tables.ENDS)[0]
    )
    for kind, key in (
        ("most negative", lambda pair: pair[0]),
        ("nearest to zero", lambda pair: abs(pair[0])),
    ):
        expected = sorted(within, key=key)[:5]
        is_of_kind = extremes["pairs"] == kind
        rows = extremes[is_of_kind]
        assert [*zip(rows["first"], rows["second"], strict=True)] == [pair[1:] for pair in expected]
        np.testing.assert_allclose(rows["cosine"], [pair[0] for pair in expected], atol=1e-12)
    (across,) = geometry.across_tables([words, places]).to_dict("records")
    cosines = unit[0] @ unit[1].T
    assert across["n"] == 360
    assert across["beyond"] == int((np.abs(cosines) > 0.2).sum())
    assert (across["min"], across["max"]) == pytest.approx((cosines.min(), cosines.max()), abs=1e-6)
    start = geometry.start_of_text(words, places, "c")
    apart = words.rows[2] - places.rows[0]
    assert start["distance"] == pytest.approx(float(apart.norm()))
    assert start["largest_difference"] == pytest.approx(float(apart.abs().max()))
    assert geometry.start_of_text(words, places, None) == {}
    about = about_mean(words.rows).assign(label=words.labels).set_index("label")
    mean = words.rows.numpy().mean(0)
    assert about.loc["b", "distance"] == pytest.approx(np.linalg.norm(words.rows[1].numpy() - mean))
    table = geometry.ends_about_mean(about.reset_index(), 1).set_index(["quantity", "end"])
    ends = table["label"]
    assert ends["cosine", "largest"] == about["cosine"].idxmax()
    assert ends["|dot|", "smallest"] == about["dot"].abs().idxmin()
    assert ends["|cosine|", "smallest"] == about["cosine"].abs().idxmin()
    assert ends["length", "largest"] == about["length"].idxmax()
    row = table.loc[("distance", "largest")]
    assert row["value"] == row["distance"] == pytest.approx(about["distance"].max())
    assert row["length"] == about.loc[row["label"], "length"]


def test_the_kinds_of_tokens():
    names = ["[UNK]", "[CLS]", "[unused0]", "a", "cat", "dog7", "##s", "!"]
    words = Tokenizer(
        models.WordPiece({name: number for number, name in enumerate(names)}, unk_token="[UNK]")
    )
    kinds = geometry.token_kinds(
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", cls_token="[CLS]")
    )
    characters, expected = "single character", ["special", "special", "unused"]
    assert kinds["kind"].tolist() == [*expected, characters, "word", "word", "piece", characters]
    table = geometry.vocabulary_table(kinds).set_index("kind")
    assert table.loc[["special", "letters and digits alone", "piece"], "tokens"].tolist() == [
        2,
        3,
        1,
    ]
    assert table.loc[characters, ["ranges", "first", "last"]].tolist() == [2, 3, 3]
    ranges = geometry.ranges_of_ids(kinds)
    assert ranges[["kind", "first", "last"]].to_numpy().tolist() == [
        ["special", 0, 1],
        ["unused", 2, 2],
        [characters, 3, 3],
        ["word", 4, 5],
        ["piece", 6, 6],
        [characters, 7, 7],
    ]
    assert geometry.listed_ranges(ranges)[:3] == [
        "  special: 0 to 1",
        "  unused: 2",
        f"  {characters}: 3, 7",
    ]
    looks = geometry.looks_of(
        ["cat", "dog7", "!"], kinds.assign(kind=kinds["kind"].replace({"unused": "word"}))
    )
    assert looks == ["word", "number", characters]
    assert geometry.shared_vocabulary({"one": kinds, "other": kinds.iloc[1:]}).loc[
        0, ["shared", "same_id"]
    ].tolist() == [7, 7]


def test_planes_keep_groups_apart_and_are_reproducible(monkeypatch):
    monkeypatch.setattr(
        "repdyn.lab.studies.panels.planes", lambda *given: islice(planes(*given), 2)
    )  # without UMAP
    vectors = torch.cat([drawn(30, 5), drawn(30, 5, seed=1) + 20])
    labels = {"number": [*range(60)], "group": ["a"] * 30 + ["b"] * 30}
    plane = plane_table(vectors, labels, 0)
    assert plane["method"].unique().tolist() == ["PCA", "t-SNE"]
    for _, places in plane.groupby("method"):
        centre = places.groupby("group")[["x", "y"]].mean()
        spread = places.groupby("group")[["x", "y"]].std().to_numpy().max()
        assert np.linalg.norm(centre.loc["a"] - centre.loc["b"]) > 2 * spread
    again = plane_table(vectors, labels, 0)
    pd.testing.assert_frame_equal(plane, again)


def test_the_plane_of_pca_is_fitted_on_all_rows(monkeypatch):
    """Of a sample balanced by kind it was another plane, with another share of the variance."""
    monkeypatch.setattr(
        "repdyn.lab.studies.panels.planes", lambda *given: islice(planes(*given), 1)
    )
    monkeypatch.setattr("repdyn.lab.studies.panels.MAX_POINTS", 20)
    vectors = torch.cat([drawn(200, 6), drawn(10, 6, seed=1) + 30])
    table = plane_table(vectors, {"kind": ["many"] * 200 + ["few"] * 10}, 0)
    of_all = PCA(2, svd_solver="full").fit(vectors.numpy())
    assert len(table) == 210
    assert table["share"].iloc[0] == pytest.approx(of_all.explained_variance_ratio_.sum())
    places = of_all.transform(vectors.numpy())
    assert table[["x", "y"]].abs().to_numpy() == pytest.approx(np.abs(places), rel=1e-3, abs=1e-4)


def test_single_positions_are_compared_with_the_next():
    """A curve would be of another position, or begin with the position itself."""
    matrix = np.arange(400.0).reshape(20, 20)
    table = following_cosines(matrix).set_index(["position", "offset"])["cosine"]
    assert table[1, 1] == matrix[1, 2]
    assert table[10, 9] == matrix[10, 19]
    assert table.index.get_level_values("position").unique().tolist() == [*range(1, 11)]
    assert len(table[1]) == 18
    assert following_cosines(np.eye(2)).empty


def test_relation_to_the_mean_in_closed_form():
    # four corners of a square of side 2 at height 3: the mean is (0, 0, 3), every length is the
    # root of 11
    corners = torch.tensor([[1.0, 1, 3], [1, -1, 3], [-1, 1, 3], [-1, -1, 3]])
    table = EmbeddingTable(
        name="input", kind="input", parameter="w", rows=corners, labels=tuple("abcd"), left_out={}
    )
    row = tables.tabulate({table: tables.distributions(table, pairs=6, seed=0)})["tables"].iloc[0]
    assert (row["mean_norm"], row["mean_share"]) == pytest.approx((3, 9 / 11))
    np.testing.assert_allclose(table.about["cosine"], 3 / math.sqrt(11))


def test_a_known_spectrum():
    # variances 4, 3, 2, 1 along the axes of a rotated frame
    deviations = (
        np.repeat(np.eye(4) * np.sqrt([4.0, 3, 2, 1]), 2, axis=0) * np.tile([1, -1], 4)[:, None]
    )
    rotation = np.linalg.qr(RANDOM.normal(size=(4, 4)))[0]
    explained = explained_variance(torch.from_numpy(deviations @ rotation + 100))
    np.testing.assert_allclose(explained, [0.4, 0.7, 0.9, 1.0], rtol=1e-9)
    assert components_for(explained) == {0.5: 2, 0.9: 3, 0.95: 4, 0.99: 4}


def brute(rows: np.ndarray, k: int) -> list[tuple[int, int]]:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit @ unit.T
    pairs = [(-cosines[a, b], a, b) for a in range(len(rows)) for b in range(a + 1, len(rows))]
    return [(a, b) for _, a, b in sorted(pairs)[:k]]


@pytest.mark.parametrize("tile", [4096, 32, 7], ids=["one tile", "many", "ragged"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_closest_pairs_against_is_complete(tile, dtype, monkeypatch):
    monkeypatch.setattr(tables, "_TILE", tile)
    rows = drawn(120, 5).to(dtype)
    pairs, nearest = closest_pairs(rows, k=15)
    assert numbers(pairs["largest"]) == brute(rows.double().numpy(), 15)
    unit = torch.nn.functional.normalize(rows.double(), dim=1)
    cosines = (unit @ unit.T).fill_diagonal_(-1)
    torch.testing.assert_close(nearest.double(), cosines.amax(1), rtol=0, atol=1e-6)


def test_duplicates_come_in_the_order_of_their_rows():
    rows = torch.tensor([[1.0, 0], [0, 1], [2, 0], [0, 3], [1, 0]])
    closest = closest_pairs(rows, k=4)[0]["largest"]
    assert numbers(closest) == [(0, 2), (0, 4), (1, 3), (2, 4)]
    assert closest["cosine"].eq(1).all()


def helix(
    n=512, period=22.0, dim=32, noise=0.1, ends=None, clockwise=False, seed=0
) -> torch.Tensor:
    """One turn per ``period`` positions, rising, in a rotated frame; nothing but noise of its size
    from ``ends`` on.
    """
    random = np.random.default_rng(seed)
    angle = 2 * math.pi * np.arange(n) / period * (-1 if clockwise else 1)
    points = np.stack([np.cos(angle), np.sin(angle), 3 * np.arange(n) / n], axis=1)
    if ends is not None:
        points[ends:] = random.normal(size=(n - ends, 3)) * 0.7
    frame = np.linalg.qr(random.normal(size=(dim, 3)))[0]
    return torch.from_numpy(
        points @ frame.T + noise * random.normal(size=(n, dim)) / math.sqrt(dim)
    )


def walk(share: float, n=512, dim=64, seed=0) -> torch.Tensor:
    """A random walk that is drawn back to the origin, more so the less is kept."""
    random = np.random.default_rng(seed)
    at = np.zeros(dim)
    points = []
    for _ in range(n):
        at = share * at + random.normal(size=dim)
        points.append(at)
    return torch.from_numpy(np.stack(points))


def test_means_by_offset_one_by_one():
    matrix = cosine_matrix(torch.from_numpy(np.random.default_rng(0).normal(size=(9, 4))))
    offsets = by_offset(matrix)
    values = np.array([matrix[place, place + 3] for place in range(6)])
    line = offsets.loc[3]
    assert line["mean"] == pytest.approx(values.mean())
    assert line["std"] == pytest.approx(values.std())
    assert (line["q05"], line["q95"]) == tuple(np.quantile(values, [0.05, 0.95]))


@pytest.mark.parametrize("clockwise", [False, True])
@pytest.mark.parametrize("period", [22, 22.4, 5.8, 3, 60])
def test_a_helix_turns_once_per_its_period(period, clockwise):
    turn = find_rotation(*principal(helix(period=period, clockwise=clockwise)))
    assert turn is not None
    assert turn.is_clear
    assert turn.period == pytest.approx(period, rel=1e-3)
    assert turn.purity > 0.99
    assert turn.ends == 512
    # a circle of radius 1 has a variance of 1, the rise from 0 to 3 one of 3/4
    assert turn.share == pytest.approx(1 / 1.75, abs=0.01)
    np.testing.assert_allclose(turn.windows["period"], period, rtol=0.05)
    assert (turn.windows["ordered"] > 0.95).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "make",
    [
        lambda seed: torch.from_numpy(np.random.default_rng(seed).normal(size=(512, 64))),
        lambda seed: walk(1.0, seed=seed),
        lambda seed: walk(0.97, seed=seed),
        lambda seed: walk(0.9, seed=seed),
        lambda seed: helix(noise=0.02)[np.random.default_rng(seed).permutation(512)],
    ],
    ids=["noise", "walk", "slow walk", "fast walk", "shuffled helix"],
)
def test_what_does_not_turn_is_not_said_to(make, seed):
    turn = find_rotation(*principal(make(seed)))
    assert turn is not None
    assert not turn.is_clear


@pytest.mark.parametrize("ends", [128, 200, 384])
def test_where_order_ends(ends):
    assert abs(find_order_end(helix(ends=ends)) - ends) <= 24


def test_a_token_that_turns_and_grows():
    # one token: (1, 0), (0, 1), (0, 3)
    states = np.array([[[1.0, 0]], [[0, 1]], [[0, 3]]])
    moves = movements(states)
    np.testing.assert_allclose(moves["norm"], [[1], [1], [3]])
    np.testing.assert_allclose(moves["step"], [[math.sqrt(2)], [2]])
    np.testing.assert_allclose(moves["cosine"], [[0], [1]], atol=1e-15)


def test_textbook_positions_in_closed_form():
    like = EmbeddingTable(
        name="position",
        kind="position",
        parameter="p",
        rows=drawn(20, 6),
        labels=tuple(map(str, range(20))),
        left_out={},
    )
    rows = geometry.sinusoids(like).rows
    assert rows[3, [0, 1, 4]].tolist() == pytest.approx(
        [math.sin(3), math.cos(3), math.sin(3 / 10_000 ** (4 / 6))]
    )
    np.testing.assert_allclose(norms(rows), math.sqrt(3))
    assert (
        by_offset(cosine_matrix(rows))["std"].max() < 1e-7
    )  # their cosine depends on the distance alone


def test_rounding_keeps_the_largest_value_and_errs_by_half_a_step_at_most():
    rows = drawn(40, 9)
    rows[7] = 0
    for bits in (8, 2):
        held = geometry.quantised(rows, bits)
        step = rows.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
        assert ((held - rows).abs() <= step / 2 + 1e-12).all()
        torch.testing.assert_close(held.abs().amax(1), rows.abs().amax(1))
    assert all(len(row.unique()) <= 3 for row in held)
    rounded = geometry.quantisation_table(
        EmbeddingTable(
            name="input", kind="input", parameter="w", rows=rows, labels=("",) * 40, left_out={}
        ),
        0,
    ).set_index("bits")
    assert rounded.loc[32, ["error", "cosine_moved", "nearest"]].tolist() == [0, 0, 1]
    assert rounded.loc[2, "error"] > 10 * rounded.loc[8, "error"] > 0


def test_the_dimensions_of_cubes():
    dimensions = geometry.dimension_table(geometry.known_clouds(0)).set_index("cloud")
    for dim in geometry.CUBES:
        assert dimensions.loc[f"cube of {dim}", "two_nn"] == pytest.approx(dim, rel=0.2)
        assert dim - 1 <= dimensions.loc[f"cube of {dim}", "components_90"] <= dim


def test_a_circle_is_one_loop_and_a_line_none():
    pytest.importorskip("ripser")
    angle = torch.arange(40).double() * 2 * math.pi / 40
    paths = {
        "circle": torch.stack([angle.cos(), angle.sin()], 1),
        "line": torch.stack([angle, 2 * angle], 1),
    }
    for name, loops in (("circle", 1), ("line", 0)):
        table = EmbeddingTable(
            name=name,
            kind="position",
            parameter="p",
            rows=paths[name],
            labels=("",) * 40,
            left_out={},
        )
        counts, features = geometry.loops_of(table, 0)
        assert counts["loops"].tolist() == [loops]
        assert features["dimension"].tolist() == [
            *(0 for _ in range(39)),
            *(1 for _ in range(loops)),
        ]
    assert counts["longest"].tolist() == [0]


def test_opposites_are_opposite_without_what_they_have_in_common():
    pairs = [pair for of_kind in geometry.PAIRS.values() for pair in of_kind]
    words = sorted({word for pair in pairs for word in pair})
    vectors = drawn(1000, 30)
    rows = {word: number for number, word in enumerate(words)}
    for one, other in geometry.PAIRS["opposites"]:
        vectors[rows[other]] = -vectors[rows[one]]
    table = EmbeddingTable(
        name="input",
        kind="input",
        parameter="w",
        rows=vectors[: len(words)] + 5,
        labels=tuple(words),
        left_out={},
    )
    compared = geometry.compare_opposites(table, rows, 0)["opposites"].set_index(
        ["removed", "pairs"]
    )
    assert compared.loc[("nothing", "opposites"), "cosine"] > 0.9
    assert compared.loc[("mean of adjectives", "opposites"), "cosine"] < -0.8
    assert compared.loc[("mean of adjectives", "synonyms"), "above_opposites"] > 0.9
    assert geometry.probe_words(table, rows, 0) == {}  # adjectives alone


def test_no_two_tokens_of_a_sentence_share_a_colour():
    """[SEP], the eleventh token, had the colour of [CLS]."""
    tokens = ("[CLS]", *(f"word{number}" for number in range(11)), "[SEP]")
    states = np.random.default_rng(0).normal(size=(4, len(tokens), 8))
    one = TokenTrajectory(tokens, states)
    figure = paths_figure("a model", one, TokenTrajectory(tokens, states + 1))
    labels = {text.get_text(): text.get_color() for text in figure.axes[0].texts if text.get_text()}
    assert set(labels) == set(tokens)
    assert len(set(labels.values())) == len(tokens)


def test_which_token_is_followed():
    states = np.ones((2, 4, 3))
    other = states + np.arange(4)[:, None] * np.array([0, 1, 0])
    first, second = (
        TokenTrajectory(("[CLS]", "the", "Ġbank", "a"), track) for track in (states, other)
    )
    tracks = followed((first, replace(second, tokens=("[CLS]", "a", "b", "c"))), ("bank",))
    assert [track.tokens for track in tracks] == [("Ġbank",), ()]
    np.testing.assert_array_equal(tracks[0].states, states[:, [2]])
    with pytest.raises(ValueError, match="got dog; they have"):
        followed((first, second), ("dog",))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("the river bank", "the savings bank", [(0, 0, True), (1, 1, False), (2, 2, True)]),
        ("the old bank", "the bank", [(0, 0, True), (2, 1, True)]),
        ("a b", "c d", [(0, 0, False), (1, 1, False)]),
        ("a b c", "a x y c", [(0, 0, True), (2, 3, True)]),
        ("a", "b c", []),
    ],
    ids=["replaced", "missing", "nothing alike", "longer", "nothing matched"],
)
def test_which_tokens_stand_for_each_other(one, other, expected):
    assert match_tokens(one.split(), other.split()) == expected


def test_states_are_those_of_the_model_token_by_token(save_model):
    model = AutoModel.from_pretrained(save_model()).eval()
    sequences = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 14]]
    layers = list(layer_states(model, sequences))
    assert [(layer.index, layer.stack) for layer in layers] == [(0, None), (1, None), (2, None)]
    for number, sequence in enumerate(sequences):
        start = sum(map(len, sequences[:number]))
        with torch.no_grad():
            expected = model(torch.tensor([sequence]), output_hidden_states=True).hidden_states
        for layer, whole in zip(layers, expected, strict=True):
            torch.testing.assert_close(
                layer.states[start : start + len(sequence)], whole[0], rtol=1e-4, atol=1e-5
            )


BASE = {
    **{
        "vocab_size": 100,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    },
    "max_position_embeddings": 64,
}


def tokenizer_of(*tokens: str) -> PreTrainedTokenizerFast:
    words = {token: number for number, token in enumerate(tokens)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="[UNK]")),
        unk_token="[UNK]",
        cls_token="[CLS]",
    )


@pytest.fixture
def vocabulary():
    """24 words, 4 tokens that nothing is turned into, and 2 special ones, in a table of 100
    rows.
    """
    return tokenizer_of(
        "[UNK]", "[CLS]", *(f"[unused{n}]" for n in range(4)), *(f"word{n}" for n in range(24))
    )


def test_rows_that_mean_nothing_are_left_out_and_counted(vocabulary):
    model = RobertaModel(RobertaConfig(**BASE))
    words, places, parts = embedding_tables(model, vocabulary)
    assert words.name == "input"
    assert places.name == "position"
    assert parts.name == "segment"
    assert words.labels == ("[UNK]", "[CLS]", *(f"word{n}" for n in range(24)))
    assert words.left_out == {NO_TOKEN: 70, UNUSED_TOKEN: 4}
    assert torch.equal(
        words.rows[words.labels.index("word3")], model.embeddings.word_embeddings.weight[9]
    )
    assert places.labels == tuple(map(str, range(62)))
    assert places.left_out == {NO_POSITION: 2}
    assert torch.equal(
        places.rows[places.labels.index("0")], model.embeddings.position_embeddings.weight[2]
    )
    assert parts.labels == ("0", "1")
    assert parts.left_out == {}


FIGURES = (
    "dimension_curves",
    "paths_without_last",
    "paths_followed",
    *(f"sinusoids_{name}" for name in ("image", "cosines", "path")),
)
PLANES = ("plane_of_tokens", "plane_of_tokens_and_position", "position_plane")


def named(figures, folder):
    """Write empty files in place of figures, which a nightly test of this study draws."""
    paths = [folder / f"{name}.{end}" for name in figures for end in ("png", "svg")]
    for path in paths:
        path.touch()
    return paths


def check_shares_of_parameters(overview, folder):
    """Check the share of the table of positions, (64, 16), among the parameters of a model."""
    shares = overview.set_index("table")["share_of_parameters"]
    n_parameters = sum(weight.numel() for weight in repdyn.load_model(folder).model.parameters())
    assert shares["position"] == pytest.approx(64 * 16 / n_parameters)
    assert shares.isna()["sinusoids"]


def test_a_token_that_no_sentence_has_is_refused_before_the_tables(save_model, monkeypatch):
    """It was refused after minutes, and what had been measured was lost."""
    monkeypatch.setattr("repdyn.lab.studies.anatomy.AnatomyStudy._add_tables", pytest.fail)
    with pytest.raises(ValueError, match="tokens of the sentences to follow, got zebra; they have"):
        repdyn.lab.anatomy(save_model("small"), pair=PAIR, follow=["zebra"])


def test_an_encoder_with_positions(save_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "repdyn.lab.studies.panels.planes", lambda *given: islice(planes(*given), 1)
    )  # others are slow
    monkeypatch.setattr(
        "repdyn.lab.studies.anatomy.find_spec", lambda name: None
    )  # loops are tested alone
    monkeypatch.setattr("repdyn.lab.studies.result.save", named)
    folder = save_model("small")
    output = tmp_path / "out"
    run_study("anatomy", folder, "--pair", *PAIR, "--closest", 3, "--follow", "c", "-o", output)
    files = {path.name for path in (output / "small").iterdir()}
    assert files == {
        *("tables.csv", "distributions.csv", "dimension_curves.csv", "closest.csv"),
        *("position_offsets.csv", "position_turns.csv", "depth.csv", "depth_apart.csv"),
        *("about_mean_words.csv", "vocabulary_ranges.csv"),
        *("position_following.csv", "position_following.png", "position_following.svg"),
        *("sinusoids_following.csv", "sinusoids_following.png", "sinusoids_following.svg"),
        *(
            f"{name}.{end}"
            for name in ("tables", "depth", "paths", "position_cosines")
            for end in ("png", "svg")
        ),
        *(f"position_path.{end}" for end in ("png", "svg")),
        *(
            "vocabulary.csv",
            "extreme_pairs.csv",
            "about_mean.csv",
            "across_tables.csv",
            "position_start.csv",
        ),
        *(f"{name}.csv" for name in (*PLANES, "known_clouds", "quantisation", "position_layouts")),
        *(f"sinusoids_{name}.csv" for name in ("offsets", "turns")),
        *(f"{name}.{end}" for name in FIGURES for end in ("png", "svg")),
        *(
            f"{name}.{end}"
            for name in (*PLANES, "about_mean", "position_image")
            for end in ("png", "svg")
        ),
    }
    closest = pd.read_csv(output / "small" / "closest.csv")
    assert closest.groupby("tables", sort=False).size().to_dict() == {
        **{
            "input": 3,
            "position": 3,
            "segment": 1,
            "input and position": 3,
            "input and segment": 3,
        },
        "position and segment": 3,
    }
    text = told(capsys)
    check_shares_of_parameters(pd.read_csv(output / "small" / "tables.csv"), folder)
    assert "position embeddings.position_embeddings.weight 64 16 " in text
    layouts = pd.read_csv(output / "small" / "position_layouts.csv")
    assert layouts["table"].tolist() == ["position", "sinusoids"]
    # the saved positions are random, in 16 dimensions; those of the textbook are a smooth path
    assert layouts["fractal_dimension"][1] < 3 < layouts["fractal_dimension"][0]
    assert layouts["purity"][0] < CLEAR < layouts["purity"][1], "the model is untrained"
    assert f"tables and figures: {output / 'small'} ({len(files)} files)" in text
