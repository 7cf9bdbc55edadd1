"""Studies: their command and models, and those of sentences, tokens and topics."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice, permutations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.spatial.distance import cdist, pdist
from studied_sentences import GROUPS, grouped, names, split
from studied_sentences import files as files
from studied_sentences import subject as subject
from studying import run_study
from synthetic_runs import make_row, to_frame
from text_fixtures import cache as cache  # of every test its own
from torch.nn.functional import cosine_similarity, normalize
from transformers import AutoModel, BertConfig, BertModel, T5Config

import repdyn
from repdyn import Probe
from repdyn.activations import LoadedModel, causal_stacks, load_models
from repdyn.capture.attention import attention_weights
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare
from repdyn.checkpoints.errors import CheckpointError
from repdyn.cli.main import main
from repdyn.data.tokens import byte_tokenizer
from repdyn.kernels import attention_topic_gap, topic_gap, topic_gap_dot
from repdyn.kernels.vocabulary import Vocabulary
from repdyn.lab.commands import STUDIES
from repdyn.lab.studies import sentence_measurements
from repdyn.lab.studies.embedding_tables import cosine_matrix
from repdyn.lab.studies.panels import planes
from repdyn.lab.studies.sentence_measurements import (
    ALL_KINDS,
    BETWEEN,
    CHARACTERS,
    FIRST,
    LAST,
    MAXIMUM,
    MEAN,
    SENSE,
    TEMPLATES,
    WORDS,
    collection_rows,
    consistency,
    fill_slots,
    kind_matrix,
    nonsense,
    nonsense_rows,
    sentence_vectors,
    separation,
)
from repdyn.lab.studies.study import read_groups, select
from repdyn.lab.studies.token_measurements import (
    SentenceStates,
    capture_sentence,
    class_tables,
    common_direction,
    compare_sentence,
    compare_with_vocabulary,
    density,
    encode_sentence,
    received_attention,
    token_names,
    without_causal_mask,
)
from repdyn.lab.studies.topic_measurements import (
    TextTopics,
    attention_gaps,
    find_topics,
    measure_topics,
    onset_table,
    over_sequences,
    shifted_topics,
)

pytestmark = pytest.mark.usefixtures("quick_images")  # how figures are written is tested elsewhere


def ended(*arguments) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["study", *map(str, arguments)])
    return stopped.value.code


def refused(capsys, *arguments) -> str:
    assert ended(*arguments) == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", STUDIES)
def test_help_of_a_study(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main(["study", name, "--help"])
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: repdyn study {name} ")
    assert f"Examples:\n  repdyn study {name} " in text
    assert "--output -o" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("typed", "word"), [(["convergance"], '"convergence"'), (["token", "gpt2"], '"tokens"')]
)
def test_a_mistyped_study_says_what_was_meant(typed, word, capsys):
    assert word in refused(capsys, *typed)


@pytest.mark.parametrize(
    ("failure", "status"), [(ValueError, 2), (OSError, 1), (CheckpointError, 1)]
)
def test_every_failure_is_one_line(failure, status, capsys, monkeypatch):
    def fail(*_, **__):
        raise failure("expected a model, got https://user:secret@host")

    monkeypatch.setattr("repdyn.lab.studies.study.load_models", fail)
    assert ended("tokens", "a", "-o", "out") == status
    assert capsys.readouterr().err == "error: expected a model, got https://host\n"


def test_a_folder(save_model):
    [subject] = _loaded(save_model("small", "bert"))
    assert subject.name == "small"
    assert type(subject.model).__name__ == "BertModel"
    assert not subject.model.training
    assert subject.tokenizer("A").input_ids == [65]
    assert subject.context == 64


def _loaded(*sources):
    """The subjects as they are while it is their turn."""
    models = []
    for loaded in load_models([*map(str, sources)]):
        models.append(LoadedModel(loaded.name, loaded.model, loaded.tokenizer))
        yield models[-1]


def test_one_model_at_a_time(save_model):
    folders = save_model("a", seed=0), save_model("b", seed=1)
    earlier = []
    for loaded in load_models([*map(str, folders)]):
        assert all(parameter.device.type == "cpu" for parameter in loaded.model.parameters())
        assert all(
            parameter.device.type == "meta" for model in earlier for parameter in model.parameters()
        )
        earlier.append(loaded.model)
    assert all(parameter.device.type == "meta" for parameter in earlier[-1].parameters())


@pytest.fixture
def run_folder(save_model, tmp_path):
    """The folder of a run with three checkpoints."""
    for number, step in enumerate((0, 8, 16)):
        save_model(f"run/hf_checkpoints/step{step}", seed=number)
    return tmp_path / "run"


def test_checkpoints_of_a_run(run_folder):
    assert names(run_folder, revisions=("step0", "step16")) == ["run@step0", "run@step16"]


@pytest.mark.parametrize("spread", [0.3, 1.0, 5.0])
def test_separation_pair_by_pair(spread):
    vectors, groups = grouped(spread=spread)
    within, between = split(vectors, groups)
    separated = separation(cosine_matrix(vectors), groups)
    assert separated["within"] == pytest.approx(within.mean())
    assert separated["between"] == pytest.approx(between.mean())
    effect = (within.mean() - between.mean()) / math.sqrt((within.var() + between.var()) / 2)
    assert separated["effect"] == pytest.approx(effect)
    better = stats.mannwhitneyu(within, between).statistic / (len(within) * len(between))
    assert separated["probability"] == pytest.approx(better)
    for name in ("within", "between", "effect", "probability"):
        assert separated[f"{name}_low"] <= separated[name] <= separated[f"{name}_high"]


def changed(n_each=8, dim=30, noise=0.2, seed=0, kinds=("plural", "past", "negated"), shared=False):
    """Each kind moves sentences along a direction of its own, more or less."""
    random = np.random.default_rng(seed)
    directions = np.linalg.qr(random.normal(size=(dim, len(kinds))))[0].T
    labels = [kind for kind in kinds for _ in range(n_each)]
    sources = [f"sentence {n if shared else (kind, n)}" for kind in kinds for n in range(n_each)]
    starts = {source: random.normal(size=dim) for source in sources}
    before = np.stack([starts[source] for source in sources])
    moves = np.repeat(directions, n_each, axis=0) + noise * random.normal(size=before.shape)
    return before, before + moves, labels, sources


@pytest.mark.parametrize(
    "shared", [False, True], ids=["sentences of their own", "the same sentences"]
)
def test_consistency_pair_by_pair(shared):
    before, after, kinds, sources = changed(shared=shared)
    moves = after - before
    unit = moves / np.linalg.norm(moves, axis=1, keepdims=True)
    pairs = [(a, b) for a, b in permutations(range(len(unit)), 2) if sources[a] != sources[b]]
    for line in consistency(before, after, kinds, sources).itertuples():
        mine = [(a, b) for a, b in pairs if line.change in (ALL_KINDS, kinds[a])]
        within = [unit[a] @ unit[b] for a, b in mine if kinds[a] == kinds[b]]
        across = [unit[a] @ unit[b] for a, b in mine if kinds[a] != kinds[b]]
        assert line.within == pytest.approx(np.mean(within))
        assert line.across == pytest.approx(np.mean(across))
        assert line.n == (24 if line.change == ALL_KINDS else 8)


def test_one_direction_for_each_kind():
    before, after, kinds, sources = changed(noise=0)
    whole, *by_kind = consistency(before, after, kinds, sources).itertuples()
    assert whole.change == ALL_KINDS
    assert [line.change for line in by_kind] == ["plural", "past", "negated"]
    for line in (whole, *by_kind):
        assert line.within == pytest.approx(1)
        assert line.across == pytest.approx(0, abs=1e-12)
        assert line.p == pytest.approx(1 / (sentence_measurements.N_PERMUTATIONS + 1))
        assert line.length == pytest.approx(1 / np.linalg.norm(before, axis=1).mean(), rel=0.1)


FIGURES = (
    *(
        "separation",
        "changes",
        "collection",
        "kinds_of_change",
        "plane_of_sentences",
        "plane_of_groups",
        "plane_of_changes",
    ),
    *("two_collections", "plane_of_collections"),
)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_vectors_against_the_model_s_own_states(family, save_model, monkeypatch):
    monkeypatch.setattr(
        sentence_measurements, "_BATCH_SENTENCES", 2
    )  # passes of two sentences, the last one of a single one
    model = AutoModel.from_pretrained(save_model(family=family)).eval()
    sequences = [[5, 6, 7, 8], [9, 10, 11, 12, 13, 14], [20, 21]]
    vectors = sentence_vectors(model, sequences)
    kinds = [FIRST, MEAN, LAST, MAXIMUM] if family == "bert" else [MEAN, LAST, MAXIMUM]
    assert set(vectors) == {(layer, kind) for layer in range(3) for kind in kinds}
    # the last of a decoder's hidden_states is after its final norm
    for layer in range(3 if family == "bert" else 2):
        for number, sequence in enumerate(sequences):
            with torch.no_grad():
                whole = (
                    model(torch.tensor([sequence]), output_hidden_states=True)
                    .hidden_states[layer][0]
                    .double()
                )
            expected = {
                FIRST: whole[0],
                MEAN: whole.mean(0),
                LAST: whole[-1],
                MAXIMUM: whole.amax(0),
            }
            for kind in kinds:
                np.testing.assert_allclose(
                    vectors[layer, kind][number], expected[kind], rtol=1e-3, atol=1e-5
                )


def test_cosines_of_kinds_of_change_against_means_by_hand():
    random = np.random.RandomState(0)
    kinds = ["a", "b", "b", "a", "c", "c"]
    before = random.randn(6, 7)
    change = random.randn(6, 7)
    matrix = pd.DataFrame(kind_matrix(before, before + change, kinds, seed=0)).set_index(
        ["kind", "other"]
    )
    mean = {kind: change[[each == kind for each in kinds]].mean(0) for kind in kinds}
    for a, b in (("a", "b"), ("a", "c"), ("b", "c")):
        expected = mean[a] @ mean[b] / np.linalg.norm(mean[a]) / np.linalg.norm(mean[b])
        assert matrix.loc[(a, b), "cosine"] == pytest.approx(expected)
        assert matrix.loc[(a, b), "low"] <= expected <= matrix.loc[(a, b), "high"]


def test_nonsense_is_told_apart_where_its_vectors_are():
    places = {SENSE: 0.0, WORDS: 5.0, CHARACTERS: 9.0}
    kinds = [kind for kind in places for _ in range(4)]
    around = np.random.RandomState(0).randn(12, 6) * 0.01
    apart = np.stack([np.eye(6)[int(places[kind]) % 6] for kind in kinds]) + around
    (row,) = nonsense_rows(apart, np.array(kinds))
    assert row["nonsense"] == 1.0
    assert row["kinds"] == 1.0
    table = nonsense(3, seed=0)
    assert table["kind"].tolist() == [WORDS] * 3 + [CHARACTERS] * 3
    pd.testing.assert_frame_equal(table, nonsense(3, seed=0))


def test_two_collections_against_pairs_by_hand():
    random = np.random.RandomState(0)
    first = random.randn(5, 4) - 30
    other = random.randn(6, 4) + 30
    rows = collection_rows(np.concatenate([first, other]), np.repeat(["a", "b"], [5, 6]))
    table = pd.DataFrame(rows).set_index(["texts", "quantity"])
    assert table["nearest"].eq(1).all()
    assert table.loc[("a", "distance"), "max"] == pytest.approx(pdist(first).max())
    assert table.loc[(BETWEEN, "distance"), ["n", "min"]].tolist() == pytest.approx(
        [30, cdist(first, other).min()]
    )
    assert table.loc[("b", "length"), "mean"] == pytest.approx(np.linalg.norm(other, axis=1).mean())


def test_a_group_with_slots_stands_for_every_sentence():
    filled = fill_slots(read_groups(TEMPLATES, "group", "sentence"))
    assert filled["group"].value_counts().to_dict() == {
        "hello": 27,
        "new car": 27,
        "happy boss": 27,
        "meeting": 10,
    }
    assert filled["sentence"].is_unique
    assert filled["sentence"][1] == "Hello there! I am glad to meet such a nice fellow here."


def test_an_encoder_from_files_to_figures(save_model, files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "repdyn.lab.studies.panels.planes", lambda *given: islice(planes(*given), 1)
    )
    run_study("sentences", save_model("small"), *files, "-o", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out" / "small").iterdir()} == {
        *("separation.csv", "changes.csv", "collections.csv"),
        *("nonsense.csv", "kinds_of_change.csv", "plane_of_sentences.csv"),
        *("plane_of_groups.csv", "plane_of_collections.csv"),
        *(f"{name}.{end}" for name in FIGURES for end in ("png", "svg")),
    }
    separation = pd.read_csv(tmp_path / "out" / "small" / "separation.csv")
    assert separation["vector"].value_counts().to_dict() == {
        MEAN: 3,
        LAST: 3,
        FIRST: 3,
        MAXIMUM: 3,
        sentence_measurements.SHARED_TOKENS: 1,
    }
    collection = pd.read_csv(tmp_path / "out" / "small" / "collections.csv")
    assert (
        collection.query("texts.str.startswith('text.txt') and quantity == 'cosine'")["n"]
        .eq(8 * 7 / 2)
        .all()
    )
    text = " ".join(capsys.readouterr().out.split())
    assert "vector within between effect nearest first token" in text
    assert (
        "cosine of two differences at the last layer: vector change n within across p length"
        in text
    )
    assert f"tables and figures: {tmp_path / 'out' / 'small'} (26 files)" in text


def test_a_study_in_python_returns_what_the_command_writes(save_model, tmp_path, capsys):
    """The command would write other numbers, or the call would lose a table or a figure."""
    folder = save_model("small", "gpt_neox")
    arguments = {"sentence": "Time flies.", "text": "builtin", "max_vectors": 96}
    result = repdyn.lab.tokens(folder, sequence_length=32, **arguments)
    assert capsys.readouterr().out == ""
    flags = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    flags = [word.replace("_", "-") if word.startswith("--") else word for word in flags]
    main(
        [
            "study",
            "tokens",
            str(folder),
            "--sequence-length",
            "32",
            *flags,
            "-o",
            str(tmp_path / "c"),
        ]
    )
    printed = capsys.readouterr().out
    saved = result.save(tmp_path / "python")
    files = {path.relative_to(tmp_path / "python"): path.read_bytes() for path in saved}
    written = {
        path.relative_to(tmp_path / "c"): path.read_bytes()
        for path in (tmp_path / "c").rglob("*.*")
    }
    assert files == written
    assert printed.startswith(f"{result.summary}\n")
    assert list(result.tables) == [f"small/{name}" for name in result.names]
    assert result.jumps.columns[0] == "model"
    pd.testing.assert_frame_equal(
        result.nearest.drop(columns="model"), result.tables["small/nearest"]
    )
    assert result.figures["rank"] is result.figures["small/rank"]
    assert "small/nearest: " in repr(result)
    assert "nearest" in dir(result)
    with pytest.raises(AttributeError, match="expected a table of tokens, nearest"):
        result.nearst  # noqa: B018


def test_loaded_models_are_studied_and_kept(save_model):
    loaded = [repdyn.load_model(str(save_model(name, "bert")), device="cpu") for name in "ab"]
    result = repdyn.lab.tokens(loaded, sentence="Hello.")
    assert result.tokens["model"].unique().tolist() == ["a", "b"]
    assert {parameter.device.type for parameter in loaded[0].model.parameters()} == {"cpu"}
    with pytest.raises(KeyError, match="a/rank, b/rank"):
        result.figures["rank"]
    with pytest.raises(ValueError, match="got both"):
        repdyn.lab.tokens([loaded[0], "b"])


@pytest.mark.parametrize(
    ("call", "flags", "in_python", "on_the_command_line"),
    [
        (lambda: repdyn.lab.topics(), ["topics"], "store=, got", "--store, got"),
        (
            lambda: repdyn.lab.convergence("a", before_after=True),
            ["convergence", "a", "--before-after"],
            "with before_after=, got 1",
            "with --before-after, got 1",
        ),
    ],
)
def test_mistakes_name_arguments_and_flags(
    call, flags, in_python, on_the_command_line, capsys, tmp_path
):
    with pytest.raises(ValueError, match=in_python):
        call()
    assert on_the_command_line in refused(capsys, *flags, "-o", tmp_path)


@pytest.mark.parametrize(
    ("study", "arguments", "message"),
    [
        ("tokens", {"nearest": 0}, "nearest= of at least 1, got 0"),
        ("topics", {"tokens_of_words": "first"}, "tokens_of_words= of whole, last, got first"),
        ("convergence", {"classes": ["verbs"]}, "classes= of words.*, got verbs"),
    ],
)
def test_arguments_are_checked_before_a_model_is_loaded(study, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(repdyn.lab, study)("no/model", **arguments)


def test_planes_are_of_the_vector_that_is_asked_for(save_model, files, monkeypatch):
    """The figures of [CLS] would show the means."""
    monkeypatch.setattr(
        "repdyn.lab.studies.panels.planes", lambda *given: islice(planes(*given), 1)
    )
    named = {
        word.removeprefix("--"): value for word, value in zip(files[::2], files[1::2], strict=True)
    }
    named = {name.replace("-", "_"): value for name, value in named.items()}
    for name in {"texts", "max_tokens", "seed"} & set(named):
        named[name] = int(named[name])
    model = save_model("small")
    of_vectors = {
        vector: repdyn.lab.sentences(model, vector=vector, **named)
        for vector in ("mean", "first", "last")
    }
    for vector, result in of_vectors.items():
        caption = "mean of the tokens" if vector == "mean" else f"{vector} token"
        for figure in (
            *("plane_of_sentences", "plane_of_groups"),
            *("plane_of_changes", "two_collections"),
        ):
            texts = [text.get_text() for text in result.figures[figure].texts]
            texts += [result.figures[figure].get_suptitle()]
            assert any(caption in text for text in texts), (figure, texts)
    places = [result.plane_of_sentences["x"].tolist() for result in of_vectors.values()]
    assert places[0] != places[1] != places[2] != places[0]
    assert set(of_vectors["first"].plane_of_groups["kind"]) == set(GROUPS)
    pd.testing.assert_frame_equal(of_vectors["mean"].separation, of_vectors["first"].separation)


THEMES = (
    "river water stream valley flood bridge mountain shore delta harbour",
    "music song album concert singer guitar piano opera violin melody",
    "match league goal season team player coach stadium trophy referee",
    "bread butter cheese pepper kitchen recipe oven flavour soup sugar",
    "planet orbit star telescope comet galaxy moon eclipse rocket meteor",
)


N = len(THEMES)


def made_up(n_documents=60, length=60, own_share=1.0, seed=0) -> list[str]:
    """Each document of one theme, perhaps with some of the next, function words, and a word that is
    in all of them.
    """
    random = np.random.RandomState(seed)
    documents = []
    for number in range(n_documents):
        of_theme, other = (
            random.choice(THEMES[(number + shift) % N].split(), length) for shift in (0, 1)
        )
        words = np.where(random.random_sample(length) < own_share, of_theme, other)
        between = random.choice(["the", "of", "and", "everywhere"], length)
        documents.append(" ".join(f"{a} {b}" for a, b in zip(between, words, strict=True)))
    return documents


@pytest.fixture(scope="module")
def themes_found() -> TextTopics:
    # some seeds end with two topics for one theme
    return find_topics(made_up(), n_topics=N, seed=1)


def test_themes_are_found(themes_found):
    themes = [set(theme.split()) for theme in THEMES]
    assert sorted(sorted(words.split()) for words in themes_found.table(10)["words"]) == sorted(
        map(sorted, themes)
    )
    np.testing.assert_allclose(themes_found.word_shares.sum(axis=1), 1)
    np.testing.assert_allclose(themes_found.document_shares.sum(axis=1), 1)
    assert (
        themes_found.document_shares.argmax(axis=1).reshape(-1, N)
        == themes_found.document_shares[:N].argmax(axis=1)
    ).all()


SENTENCE = "The £1 coin"


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def decoder(save_model):
    return LoadedModel(
        "gpt", AutoModel.from_pretrained(save_model("gpt", "gpt2")).eval(), byte_tokenizer()
    )


@pytest.mark.parametrize("positions", [False, True], ids=["", "positions"])
def test_trajectories_against_naive_ones(positions):
    table = random(40, 8)
    ids = [3, 7, 3, 39, 0]
    added = random(5, 8, seed=1) if positions else None
    keys = [(layer, state) for layer in range(3) for state in ("attention", "block")]
    vectors = [random(5, 8, seed=number) + table[ids] for number in range(6)]
    sentence = SentenceStates(
        ids=ids, vectors=dict(zip(keys, vectors, strict=True)), embeddings=table, reasons=[]
    )
    compared = compare_with_vocabulary(sentence, table, byte_tokenizer(), k=4, positions=added)
    lines = compared.table.to_dict("records")
    near = compared.nearest.to_dict("records")
    assert len(lines) == 6 * 5
    assert len(near) == 6 * 5 * 4
    for number, line in enumerate(lines):
        position = number % 5
        assert (line["layer"], line["state"], line["position"]) == (*keys[number // 5], position)
        assert line["token_id"] == ids[position]
        assert line["token"] == token_names(byte_tokenizer(), ids)[position]
        rows = table.double() + (added[position].double() if positions else 0)
        cosines = cosine_similarity(vectors[number // 5][position].double(), rows, dim=1)
        assert line["cosine"] == pytest.approx(cosines[ids[position]].item(), rel=1e-10)
        assert line["rank"] == (cosines > cosines[ids[position]] + 1e-12).sum()
        best = near[4 * number : 4 * number + 4]
        assert [candidate["nearest_id"] for candidate in best] == cosines.topk(4).indices.tolist()
        assert [candidate["place"] for candidate in best] == [1, 2, 3, 4]
        assert [candidate["cosine"] for candidate in best] == pytest.approx(
            cosines.topk(4).values.tolist(), rel=1e-10
        )


def test_the_states_are_those_of_a_plain_run(subject):
    captured = capture_sentence(subject, SENTENCE)
    compared = compare_sentence(subject, captured, k=3)
    model, ids = subject.model, encode_sentence(subject, SENTENCE)
    sums = []

    def keep_sum(_module, arguments):
        sums.append(arguments[0][0])

    for block in model.encoder.layer:
        block.attention.output.LayerNorm.register_forward_pre_hook(keep_sum)
    with torch.no_grad():
        hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    expected = {("block", layer): states[0] for layer, states in enumerate(hidden)}
    expected |= {("attention", layer): states for layer, states in enumerate(sums, start=1)}
    token_rows = model.embeddings.word_embeddings.weight[ids]
    assert captured.reasons == []
    assert len(compared.table) == len(ids) * len(expected)
    for (state, layer), lines in compared.table.groupby(["state", "layer"]):
        cosines = cosine_similarity(expected[state, layer], token_rows, dim=1).tolist()
        assert lines["cosine"].tolist() == pytest.approx(cosines, rel=1e-4)


def test_the_causal_mask_is_taken_off_and_put_back(decoder):
    sequences = [encode_sentence(decoder, SENTENCE)]
    before = decoder.model.config.to_dict()
    with without_causal_mask(decoder, SENTENCE):
        assert causal_stacks(decoder, sequences) == {None: False}
    assert causal_stacks(decoder, sequences) == {None: True}
    assert decoder.model.config.to_dict() == before


def moving_classes():
    """Ten sequences of two function and two content words, at three layers; the first jump and
    return, the others leave at the end."""
    members = {"function": np.arange(0, 40, 2), "content": np.arange(1, 40, 2)}
    values = np.full((3, 40), 0.9)
    ranks = np.zeros((3, 40))
    values[1, 0::2], ranks[1, 0::2] = 0.5, 99
    values[2, 1::2], ranks[2, 1::2] = 0.8, 999
    values[2, 1] = 0.95
    layers = {number: (values[number], ranks[number]) for number in range(3)}
    return class_tables(layers, members, np.arange(40) // 4, "cosine")


def test_words_that_jump_and_return():
    classes, changes, jumps, points = moving_classes().values()
    one = select(classes, layer=1, **{"class": "function"}).iloc[0]
    assert one[["tokens", "cosine", "rank_q25", "rank", "kept"]].tolist() == [20, 0.5, 99, 99, 0]
    ranks = select(jumps, quantity="log_rank").set_index("class")
    assert ranks.loc[
        "function", ["layer", "jump", "jump_low", "returned"]
    ].tolist() == pytest.approx([1, 2, 2, 1])
    assert ranks.loc[
        "content", ["layer", "jump", "jump_low", "returned"]
    ].tolist() == pytest.approx([2, 3, 3, 0])
    gap = select(changes, quantity="log_rank_change", **{"class": "function minus content"})
    assert gap["value"].tolist() == pytest.approx([2, -5])
    ever = select(changes, layer="any").set_index(["quantity", "class"])["value"]
    assert ever[["nearer", "nearer_by_0.01"]].tolist() == pytest.approx([1, 0.05, 0.95] * 2)
    assert ever["ranks_per_0.01", "function"] == pytest.approx(99 / 40)
    assert len(points) == 3 * 40


def test_attention_received_is_that_of_the_class_beyond_its_place():
    even = torch.full((2, 4, 4), 0.25).double()
    to_second = torch.tensor([0.1, 0.7, 0.1, 0.1]).double().expand(2, 4, 4)
    weights = [
        (even if number % 2 else to_second, 4 * number + np.arange(4)) for number in range(4)
    ]
    is_function = np.arange(16) % 8 == 1
    found = received_attention(weights, {"function": is_function, "content": ~is_function})
    mean = select(found, head=None).set_index("class")
    assert mean.loc["function", ["received", "by_position"]].tolist() == pytest.approx(
        [2.8, (2.8 + 1 + 1) / 3]
    )
    assert mean.loc["content", "received"] == pytest.approx((6 * 0.4 + 8) / 14)


def test_density_against_a_naive_one():
    table = random(60, 5)
    table[20:32] = table[20]  # more copies than neighbours
    table[50] = 0
    ids = torch.tensor([3, 20, 3, 50, 7, 59, 7, 7])
    is_function = torch.tensor([True, False, True, False, False, True, True, False])
    densities = density(Vocabulary(table), ids, is_function)
    unit = normalize(table.double())
    assert densities["token_id"].tolist() == [3, 7, 20, 59]
    assert densities["count"].tolist() == [2, 3, 1, 1]
    assert densities["class"].tolist() == ["function", "content", "content", "function"]
    for line in densities.to_dict("records"):
        cosines = unit @ unit[line["token_id"]]
        cosines[[line["token_id"], 50]] = -2
        assert line["density"] == pytest.approx(cosines.topk(10).values.mean().item(), rel=1e-10)
        assert line["norm"] == pytest.approx(
            table[line["token_id"]].double().norm().item(), rel=1e-12
        )


def test_common_direction_against_all_pairs():
    before = random(12, 5)
    after = random(12, 5, seed=1) + 0.7
    after[4] = before[4]  # does not move
    sequences = torch.tensor([4, 4, 4, 9, 9, 9, 9, 11, 4, 4, 9, 30])
    within, between = common_direction(before, after, sequences)
    units = normalize((after - before).double())
    moved = [place for place in range(12) if place != 4]
    pairs = list(permutations(moved, 2))
    for mean, same in ((within, True), (between, False)):
        cosines = [
            float(units[a] @ units[b])
            for a, b in pairs
            if bool(sequences[a] == sequences[b]) is same
        ]
        assert mean == pytest.approx(np.mean(cosines), rel=1e-6)


def ran_of_tokens_study(*arguments):
    main(["study", "tokens", *map(str, arguments)])


def test_both_stacks_of_an_encoder_decoder(tmp_path):
    from transformers import T5ForConditionalGeneration

    config = T5Config(
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_decoder_layers=1,
        num_heads=2,
        vocab_size=260,
        decoder_start_token_id=0,
    )
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    byte_tokenizer().save_pretrained(tmp_path / "t5")
    ran_of_tokens_study(tmp_path / "t5", "--sentence", SENTENCE, "-o", tmp_path / "out")
    for stack, blocks in (("encoder", 2), ("decoder", 1)):
        folder = tmp_path / "out" / f"t5_({stack})"
        assert {path.stem for path in folder.iterdir()} == {"tokens", "nearest", "cosine", "rank"}
        assert pd.read_csv(folder / "tokens.csv")["layer"].max() == blocks


def stretches(n_sequences=40, length=32, seed=0):
    """(n_sequences, length) topics that last for eight places."""
    random = np.random.RandomState(seed)
    return torch.from_numpy(random.randint(3, size=(n_sequences, length // 8))).repeat_interleave(
        8, dim=1
    )


def words_of(topics, seed=1):
    """Words of which each topic has ten."""
    return 10 * topics + torch.randint(
        10, topics.shape, generator=torch.Generator().manual_seed(seed)
    )


def test_topics_of_others_are_those_of_another_sequence_place_by_place():
    topics = stretches(5)
    others = shifted_topics(topics, n_shifts=20)
    assert len(others) == 4
    for shift, labels in enumerate(others, start=1):
        for number in range(5):
            assert torch.equal(labels[number], topics[(number - shift) % 5])


def gap_of_attention(scores_of):
    topics = stretches()
    ids = words_of(topics)
    tokens = np.arange(topics.numel()).reshape(topics.shape)
    weights = [
        (scores_of(labels).softmax(-1)[None], numbers)
        for labels, numbers in zip(topics, tokens, strict=True)
    ]
    others = [labels.flatten() for labels in shifted_topics(topics)]
    return attention_gaps(weights, ids.flatten(), topics.flatten(), *others).iloc[0]


def test_attention_that_goes_by_position_has_a_gap_and_the_same_under_the_topics_of_others():
    place = torch.arange(32)
    gap = gap_of_attention(lambda _: -0.3 * (place[:, None] - place).abs().double())
    assert gap.gap > 0.02
    assert gap.control == pytest.approx(gap.gap, rel=0.1)
    assert abs(gap.difference) < 4 * gap.standard_error


def test_the_gap_over_sequences_against_numpy():
    random = np.random.RandomState(0)
    gaps = {"gap": random.random_sample((6, 3)), "control": random.random_sample((6, 3))}
    *heads, mean = over_sequences(gaps).to_dict("records")
    difference = gaps["gap"] - gaps["control"]
    for number, gap in enumerate(heads):
        assert gap["head"] == number
        assert gap["gap"] == pytest.approx(gaps["gap"][:, number].mean())
        assert gap["difference"] == pytest.approx(difference[:, number].mean())
        assert gap["standard_error"] == pytest.approx(
            difference[:, number].std(ddof=1) / np.sqrt(6)
        )
    assert pd.isna(mean["head"])
    assert mean["difference"] == pytest.approx(difference.mean())
    without = over_sequences({name: np.vstack([x, [[np.nan] * 3]]) for name, x in gaps.items()})
    np.testing.assert_allclose(
        without["standard_error"][:3], [gap["standard_error"] for gap in heads]
    )


def test_a_gap_appears_at_the_step_from_which_on_it_stays():
    values = {
        "topic_gap": [0.0, 0.3, 0.05, 0.4, 1.0],
        "attention_topic_gap": [0.2, 0.0, 0.0, -0.05, -0.4],
    }
    values["attention_evenness"] = [1.0, 0.9, 0.8, 0.7, 0.6]
    steps = [0, 1, 2, 4, 8]
    rows = [
        make_row(metric=m, layer=1, step=s, value=v)
        for m in values
        for s, v in zip(steps, values[m], strict=True)
    ]
    onsets = onset_table(to_frame(rows)).set_index("metric")
    assert onsets[["onset", "half"]].to_numpy().tolist() == [[4, 8], [4, 8]]
    assert onsets.loc["attention_topic_gap", "evenness"] == 0.6


def model_and_probe():
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            vocab_size=40,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
        )
    )
    topics = stretches(8, 32)
    ids = 3 + words_of(topics)
    ids[:, 0], topics[:, 0] = 2, -1
    probe = Probe.from_tokens(ids, special_ids=[2], max_vectors=64, batch_vectors=32)
    return model.eval(), probe.with_topics(topics.flatten())


def test_every_number_against_the_kernels():
    model, probe = model_and_probe()
    measured = measure_topics(model, probe, seed=3)
    tokens = np.flatnonzero(~probe.is_sink.numpy())
    whole = replace(probe, batch_vectors=len(tokens), n_batches=1)
    states = capture(prepare(model, whole), whole, ["no_sink"])
    weights = attention_weights(prepare(model, probe), probe)
    others = [probe.topics.view(8, 32).roll(shift, dims=0).flatten() for shift in range(1, 8)]
    for layer in states.layers:
        x = layer.states[states.rows_of(tokens)]
        for product, kernel in (("cosine", topic_gap), ("dot", topic_gap_dot)):
            [gap] = select(measured.embeddings, layer=layer.index, product=product).to_dict(
                "records"
            )
            assert gap["gap"] == pytest.approx(
                kernel(x, probe.tokens[tokens], probe.topics[tokens]).item(), rel=1e-6
            )
            assert gap["gap"] == gap["same"] - gap["different"]
            controls = [kernel(x, probe.tokens[tokens], labels[tokens]).item() for labels in others]
            assert gap["control"] == pytest.approx(np.mean(controls), rel=1e-6)
            assert gap["control_std"] == pytest.approx(np.std(controls, ddof=1), rel=1e-6)
    assert set(measured.attention["layer"]) == {1, 2}
    for layer, gaps in measured.attention.groupby("layer"):
        expected = [
            attention_topic_gap(of_sequence, probe.tokens[numbers], probe.topics[numbers])
            for of_sequence, numbers in weights.of(None, int(layer))
        ]
        np.testing.assert_allclose(
            gaps["gap"][gaps["head"].notna()], np.nanmean(np.stack(expected), axis=0)
        )
    assert len(measured.ids) == 8 * 31
    assert measured.length == 32
