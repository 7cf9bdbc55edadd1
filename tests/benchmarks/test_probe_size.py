"""The study of the probe's size, at sizes that take a moment. What it says of cost is not looked at."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import AlbertConfig, AlbertModel, AutoModel

from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.data.text import Corpus
from repdyn.kernels import anisotropy, two_nn
from repdyn.layers.capture import capture
from repdyn.models import build_model

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TEXT = "The quick brown fox jumps over the lazy dog, again and again. " * 40
# what stands in each of two columns for a plan: (batches, n)
PLANS = [(1, 512), (1, 1024), (16, 64), (8, 128), (4, 256), (2, 512)]
ESTIMATORS = ["two_nn", "gride_2", "gride_4", "gride_8", "gride_16", "gride_32"]


def save_small_model(folder: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"vocab_size": 260, "hidden_size": 16, "n_layers": 3, "n_heads": 2, "context_length": 64}
    build_model("gpt_neox", **sizes).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a model in it."""
    return save_small_model(tmp_path_factory.mktemp("study") / "MODEL").parent


@pytest.fixture(scope="module")
def written(place) -> Path:
    """What one run left behind."""
    command = [sys.executable, str(BENCHMARKS / "probe_size.py"), "--model", "MODEL", "--layers", "0,last"]
    done = subprocess.run(
        [*command, "--largest", "1024", "--repeats", "2", "--output", "out"],
        cwd=place,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (place / "out" / "stdout").write_text(done.stdout)
    return place / "out"


@pytest.fixture(scope="module")
def rows(written) -> pd.DataFrame:
    return pd.read_csv(written / "probe_size.csv", comment="#", keep_default_na=False, na_values=[""])


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a module of the benchmark."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def pool(benchmark):
    """1000 Gaussian vectors of a made-up layer."""
    states = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0))
    return benchmark("sizes.study").Pool("MODEL", "layer 1 of 3", states, 1000)


def silent(what: str, done: int) -> None:
    pass


def test_every_plan_has_a_row_for_each_quantity(rows):
    last = rows[rows["cloud"] == "layer 3 of 3"]
    for quantity in ("two_nn", "anisotropy"):
        own = last[last["quantity"] == quantity]
        assert sorted(zip(own["batches"], own["n"], strict=True)) == sorted(PLANS)
        assert own["note"].isna().all()
        assert (own["draws"] == 2).all()
        assert own.loc[own["n"] == 1024, ["deviation", "cost"]].to_numpy().tolist() == [[0, 1]]


def test_a_layer_of_too_few_distinct_vectors_says_so_and_has_no_value(written, rows):
    first = rows[rows["cloud"] == "layer 0 of 3"]
    known = int(first["n_distinct"].iloc[0])
    assert 64 < known < 128  # bytes of the text: states of layer 0 differ no further
    assert first["n_vectors"].unique().tolist() == [2048]
    enough = first["n"] <= known
    assert (first.loc[~enough, "note"] == f"only {known} distinct vectors").all()
    assert first.loc[~enough, "mean"].isna().all()
    assert first.loc[enough, "mean"].notna().all()
    assert (written / "probe_size.md").read_text().count(f"only {known} distinct vectors") == 2 + 4


def test_the_tables_say_where_and_how(written):
    text, shown = (written / "probe_size.md").read_text(), (written / "stdout").read_text()
    assert "- command: python benchmarks/probe_size.py --model MODEL --layers 0,last --largest 1024" in text
    assert f"torch {torch.__version__}" in text
    for where in (text, shown):
        assert "a matter of scale, not an error" in where
        assert "### layer 3 of 3 of MODEL: 2,048 vectors, " in where
        assert "### layer 3 of 3 of MODEL: 1,024 vectors in batches" in where
        assert "### Uniform cubes" in where


@pytest.mark.parametrize("name", ["drift.png", "drift.svg", "cubes.png", "cubes.svg"])
def test_figures_are_written_and_shown(written, name):
    assert (written / name).stat().st_size > 10_000
    assert name.endswith("svg") or f"({name})" in (written / "probe_size.md").read_text()


def test_estimates_of_high_dimensions_fall_short(rows):
    cubes = rows[rows["cloud"] == "uniform cube"].set_index(["dimension", "n", "quantity"]).sort_index()
    assert len(cubes) == 5 * 2 * len(ESTIMATORS)
    two_nn_at = cubes.xs("two_nn", level="quantity")["mean"].xs(1024, level="n")
    assert two_nn_at[2] == pytest.approx(2, abs=0.2)
    assert 20 < two_nn_at[40] < 30
    far = cubes.loc[(40, 1024), "deviation"]
    assert (far < -0.25).all()
    assert far["gride_32"] < far["gride_4"]
    deviation = cubes["mean"] / cubes.index.get_level_values("dimension") - 1
    pd.testing.assert_series_equal(cubes["deviation"], deviation, check_names=False)


@pytest.mark.parametrize(
    ("size", "n_draws", "n_different"),
    [(100, 8, 800), (300, 8, 1000), (600, 8, 1000), (1000, 1, 1000)],
    ids=["disjoint", "three and three", "one by one", "all"],
)
def test_draws_are_disjoint_as_far_as_the_vectors_suffice(benchmark, size, n_draws, n_different):
    drawn = benchmark("sizes.study").draws(1000, size, 8)
    assert [len(one.unique()) for one in drawn] == [size] * n_draws
    together = 1000 // size
    first = drawn[:together]
    assert len(torch.cat(first).unique()) == len(first) * size
    assert len(torch.cat(drawn).unique()) >= 0.98 * n_different


def test_values_are_those_of_the_batches(benchmark, pool):
    study = benchmark("sizes.study")
    plans = [study.Plan(1, 128), study.Plan(1, 256), study.Plan(4, 64)]
    found = {(row.batches, row.n, row.quantity): row for row in study.study(pool, plans, 3, silent)}
    for quantity, kernel in (("two_nn", two_nn), ("anisotropy", anisotropy)):
        sets = study.draws(1000, 256, 3)
        whole = torch.stack([kernel(pool.states[one]) for one in sets])
        parts = torch.stack([torch.stack([kernel(pool.states[some]) for some in one.split(64)]).mean() for one in sets])
        largest, plan = found[1, 256, quantity], found[4, 64, quantity]
        assert largest.mean == pytest.approx(whole.mean().item())
        assert largest.sd == pytest.approx(whole.std().item())
        assert (plan.mean, plan.sd) == pytest.approx((parts.mean().item(), parts.std().item()))
        assert plan.deviation == pytest.approx((parts.mean() / whole.mean()).item() - 1, abs=1e-6)
        assert found[1, 128, quantity].overlapping is False
    assert {row.overlapping for row in study.study(pool, [study.Plan(1, 400)], 3, silent)} == {True}


@pytest.mark.parametrize(
    ("plan", "note"),
    [((1, 1024), "only 1,000 vectors"), ((4, 512), "only 1,000 vectors"), ((2, 256), "")],
    ids=["one batch", "several", "enough"],
)
def test_plans_that_need_more_than_there_is(benchmark, pool, plan, note):
    study = benchmark("sizes.study")
    rich = study.Pool(pool.model, pool.cloud, pool.states, 5000)
    assert rich.lack(study.Plan(*plan)) == note


def test_distinct_vectors_are_told_of_the_batch_that_has_fewest(benchmark, pool):
    study = benchmark("sizes.study")
    half = study.Pool("MODEL", "layer 0 of 3", pool.states[:500].repeat(2, 1), 500)
    row = study.study(half, [study.Plan(1, 400)], 3, silent)[0]
    fewest = min(len(half.states[one].unique(dim=0)) for one in study.draws(1000, 400, 3))
    assert (row.fewest_distinct, row.n_distinct) == (fewest, 500)


def test_what_is_undefined_has_no_value(benchmark, pool):
    study = benchmark("sizes.study")
    pool.states[3, 3] = torch.nan
    row, _ = study.study(pool, [study.Plan(1, 1000)], 2, silent)
    assert (row.mean, row.deviation, row.note) == (None, None, "undefined in 1 of 1 draws")


def test_batches_of_equal_plans(benchmark):
    study = benchmark("sizes.study")
    plans = [(16, 1024), (8, 2048), (4, 4096), (2, 8192), (1, 16384)]
    assert study.equal_plans(65536) == [study.Plan(*plan) for plan in plans]
    assert study.sizes(65536) == [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]


def test_states_are_those_of_the_layers_asked_for(benchmark, place):
    states = benchmark("sizes.states")
    tokenizer, corpus = byte_tokenizer(), Corpus("foxes", TEXT.encode())
    shares: list[float] = []
    found = states.pools(str(place / "MODEL"), tokenizer, corpus, [0, "last"], 512, shares.append)
    assert [pool.cloud for pool in found] == ["layer 0 of 3", "layer 3 of 3"]
    assert shares[-1] == 1
    model = AutoModel.from_pretrained(place / "MODEL")
    every = capture(model, states.probe_of(corpus, tokenizer, 64, 512), ["no_sink"]).layers
    for pool, layer in zip(found, (every[0], every[3]), strict=True):
        assert torch.equal(pool.states, layer.states)
        assert pool.n_distinct == len(pool.states.unique(dim=0))


def test_a_short_text_gives_all_it_has(benchmark):
    probe = benchmark("sizes.states").probe_of(Corpus("short", b"abcdefghij" * 20), byte_tokenizer(), 64, 1000)
    firsts = len(probe.lengths)
    assert probe.batch_vectors == len(probe.tokens) - firsts
    assert probe.n_batches == 1


def test_names_of_layers(benchmark):
    numbers = benchmark("sizes.states").layer_numbers
    assert numbers(["first", "middle", "last"], 12, "MODEL") == [1, 6, 12]
    assert numbers(["last", 0, 1, "first"], 1, "MODEL") == [0, 1]
    message = "expected layers from 0 to 3 for MODEL, got 4; first, middle and last exist in every model"
    with pytest.raises(ValueError, match=message):
        numbers([4], 3, "MODEL")


def test_shared_blocks_are_refused(benchmark, tmp_path):
    config = AlbertConfig(
        vocab_size=260, embedding_size=8, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=64,
    )  # fmt: skip
    AlbertModel(config).save_pretrained(tmp_path)
    corpus = Corpus("foxes", TEXT.encode())
    message = "to run each block once, got 3 runs of 1; take a model whose layers do not share their weights"
    with pytest.raises(RuntimeError, match=message):
        benchmark("sizes.states").pools(str(tmp_path), byte_tokenizer(), corpus, ["last"], 256, lambda share: None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--largest", "5000"], "expected a power of two of 1024 or more, such as 16384, got '5000'; sizes double from 512 on"),
        (["--largest", "512"], "expected a power of two of 1024 or more, such as 16384, got '512'; sizes double from 512 on"),
        (["--repeats", "1"], "expected a whole number of 2 or more, got '1'; one has no spread"),
        (["--layers", "first,lats"], "expected first, middle, last or numbers apart by commas, got 'first,lats'; 0 is what enters the first block"),
        (["--text", "no.txt"], "expected a text file (plain, .gz, .xz or .zip), found none at"),
    ],
    ids=["power", "small", "repeats", "layers", "text"],
)  # fmt: skip
def test_mistyped_options(benchmark, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["probe_size.py", *arguments])
    with pytest.raises(SystemExit):
        benchmark("probe_size").main()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "expected the folder or hub name of a model with its tokenizer, got FOLDER (Unrecognized model in FOLDER"),
        (("config.json", "model.safetensors"), "expected a tokenizer beside the model in FOLDER, found none; write it there with its save_pretrained"),
    ],
    ids=["no model", "no tokenizer"],
)  # fmt: skip
def test_an_incomplete_folder(benchmark, monkeypatch, capsys, place, tmp_path, files, message):
    for file in files:
        shutil.copy(place / "MODEL" / file, tmp_path)
    monkeypatch.setattr(sys, "argv", ["probe_size.py", "--model", str(tmp_path)])
    with pytest.raises(SystemExit):
        benchmark("probe_size").main()
    captured = capsys.readouterr()
    assert message.replace("FOLDER", str(tmp_path)) in captured.err
    assert captured.out == ""


def test_a_layer_that_does_not_exist(benchmark, monkeypatch, place):
    model = str(place / "MODEL")
    monkeypatch.setattr(sys, "argv", ["probe_size.py", "--model", model, "--layers", "7", "--largest", "1024"])
    with pytest.raises(SystemExit, match=f"probe_size.py: error: expected layers from 0 to 3 for {model}, got 7; "):
        benchmark("probe_size").main()
