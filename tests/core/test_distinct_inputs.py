"""What the nearest neighbour of a vector is, and clouds in which no input occurs twice."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from small import HandWritten, random_tokens

import repdyn
from repdyn import Probe, measure
from repdyn.kernels import Cloud, same_label_fraction, two_nn
from repdyn.metrics import resolve
from repdyn.probe.distinct import MOST_VECTORS, draw, evenly, too_few


def naive_fraction(points: torch.Tensor, groups: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the fraction by brute force in float64; of equally near points one that is alike
    counts.
    """
    distances = torch.cdist(
        points.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist"
    )
    in_one_group = groups[:, None] == groups
    distances[in_one_group] = math.inf
    nearest = distances.min(dim=1, keepdim=True).values
    is_nearest = distances == nearest
    is_alike = labels[:, None] == labels
    return (is_nearest & is_alike).any(dim=1).double().mean().item()


@pytest.mark.parametrize("n_values", [400, 30], ids=["distinct", "equal vectors"])
@pytest.mark.parametrize("per_group", [1, 4])
def test_same_label_fraction_is_that_of_brute_force(n_values, per_group):
    """A copy in the own window is taken for a neighbour, or one outside of it is overlooked."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(n_values, 6, generator=generator)
    points = values[torch.randint(n_values, (400,), generator=generator)]
    labels = torch.randint(5, (400,), generator=generator)
    groups = torch.arange(400) // per_group
    fraction = same_label_fraction(Cloud(points, groups=groups), labels)
    assert fraction.item() == naive_fraction(points, groups, labels)


def test_ends_of_the_same_label_fraction():
    points = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    assert same_label_fraction(Cloud(points), torch.zeros(50, dtype=torch.int64)) == 1
    assert same_label_fraction(Cloud(points), torch.arange(50)) == 0
    groups = torch.zeros(50, dtype=torch.int64)
    assert math.isnan(same_label_fraction(Cloud(points, groups=groups), torch.arange(50)))


def test_nothing_is_drawn_twice():
    rng = np.random.RandomState(0)
    candidates = rng.permutation(600)
    labels = candidates % 70
    windows = candidates // 30
    drawn = draw(candidates, windows=windows, labels=labels, n_vectors=50, per_window=4)
    assert len(drawn) == 50
    assert len(set(drawn % 70)) == 50
    assert np.bincount(drawn // 30).max() <= 4
    # in the order that was given, which is the seed's
    order = {token: rank for rank, token in enumerate(candidates.tolist())}
    assert sorted(drawn, key=order.get) == drawn.tolist()


@pytest.mark.parametrize("n_batches", [1, 2])
def test_samples_of_a_probe_have_no_input_twice(n_batches):
    """Batches that draw from all windows would share them; a window would be drawn from beyond what
    is read.
    """
    tokens = random_tokens(40, 12) % 9
    probe = Probe.from_tokens(tokens, max_vectors=160, batch_vectors=160 // n_batches)
    assert probe.n_batches == n_batches
    read = probe.tokens_needed(probe.sample("all").ravel(), causal=True)
    for subset, labels in (
        ("distinct_inputs", probe.inputs_of_tokens),
        ("types", probe.tokens.numpy()),
    ):
        sample = probe.sample(subset)
        assert all(len(set(labels[batch])) == len(batch) for batch in sample)
        needed = probe.tokens_needed(sample.ravel(), causal=True)
        assert bool((needed <= read).all())
        windows = [set(probe.window_of(batch)) for batch in sample]
        assert len(set.union(*windows)) == sum(map(len, windows))


def test_equal_inputs_are_the_same_token_at_the_same_position():
    probe = Probe.from_tokens([[5, 6, 5], [5, 5, 6, 6]])
    numbers = probe.inputs_of_tokens
    assert (numbers[:, None] == numbers).sum() == 7 + 2  # the pair of the first positions
    assert numbers[0] == numbers[3]


def test_too_few_distinct_inputs_have_no_value(hand_written):
    """A cloud of 9 tokens is a value without a reason."""
    probe = Probe.from_tokens(random_tokens(64, 12) % 9, max_vectors=512)
    frame = measure(hand_written, probe, ["two_nn@types"]).to_pandas()
    assert frame["value"].isna().all()
    assert set(frame["n_vectors"]) == {9}
    assert frame["reason"].str.contains("9 distinct tokens, at least 256").all()
    assert too_few("distinct_inputs", n_vectors=511, batch_vectors=4096) is not None
    assert too_few("distinct_inputs", n_vectors=512, batch_vectors=4096) is None


def probe_of_vocabulary(n_tokens: int) -> Probe:
    """Return a probe of 1,024 vectors whose text has nearly as many distinct tokens as given."""
    tokens = random_tokens(128, 32, vocabulary=n_tokens)
    return Probe.from_tokens(tokens, max_vectors=1024)


def measured_on(probe: Probe, *metrics: str) -> list[str]:
    return [f"{request.name}@{request.subset}" for request in resolve(metrics, probe)]


@pytest.mark.parametrize(
    ("n_tokens", "chosen"),
    [
        pytest.param(200, "distinct_inputs", id="bytes"),
        pytest.param(500, "distinct_inputs", id="not quite 512"),
        pytest.param(800, "types", id="a vocabulary"),
    ],
)
def test_the_cloud_beside_all_vectors_is_chosen_by_the_probe(n_tokens, chosen):
    """Rotary models of a real vocabulary are measured on distinct inputs, bytes on too few types,
    or a metric that was asked for by name on another cloud than it names.
    """
    probe = probe_of_vocabulary(n_tokens)
    assert measured_on(probe, "two_nn") == ["two_nn@all", f"two_nn@{chosen}"]
    assert measured_on(probe, "gride_4@distinct") == [f"gride_4@{chosen}"]
    named = ["two_nn@types", "two_nn@distinct_inputs"]
    assert measured_on(probe, *named) == named
    both = ["two_nn@all", *named]
    assert [f"two_nn@{request.subset}" for request in resolve(["two_nn"])] == both


def test_images_are_measured_on_all_vectors_alone():
    """A probe without tokens is asked for types."""
    probe = Probe.from_inputs([torch.zeros(6, 3, 8, 8)], max_vectors=6, vectors_per_input=1)
    assert measured_on(probe, "two_nn") == ["two_nn@all"]


def test_live_and_offline_are_measured_on_the_same_vectors(tmp_path, without_figures):
    """A probe that is read again chooses another cloud or other vectors, and a sweep does not
    continue the curve of its run.
    """
    model = HandWritten(vocabulary=800)
    probe = probe_of_vocabulary(800)
    probe.save(tmp_path / "probe.safetensors")
    with repdyn.Tracker(model, probe, 1, store=tmp_path / "live", report=False) as tracker:
        tracker.step()
    live = repdyn.open_store(tmp_path / "live").to_pandas().query("layer >= 0 and step == 1")
    read = Probe.load(tmp_path / "probe.safetensors")
    offline = measure(model, read).to_pandas()
    assert set(live.query("metric == 'two_nn'")["subset"]) == {"all", "types"}
    columns = ["layer", "metric", "subset", "n_vectors", "value", "same_token_fraction"]
    order = ["metric", "subset", "layer"]
    pd.testing.assert_frame_equal(
        *(
            frame[columns].astype({"metric": str, "subset": str}).sort_values(order, ignore_index=1)
            for frame in (live, offline)
        ),
        check_dtype=False,
        check_exact=True,
    )


def test_types_are_drawn_once_and_evenly():
    """Each step draws other types, or the most frequent ones alone are kept."""
    rng = np.random.RandomState(0)
    tokens = np.minimum(rng.zipf(1.2, (512, 80)), 60_000)
    probe = Probe.from_tokens(tokens)
    sample = probe.sample("types")
    assert sample.shape == (1, MOST_VECTORS)
    again = Probe.from_tokens(tokens)
    assert np.array_equal(again.sample("types"), sample)
    # rare tokens are as likely as frequent ones among the kept, and come later among the drawn
    drawn = np.arange(4096)
    chosen = evenly(drawn, 2048, seed=0)
    assert (np.diff(chosen) > 0).all()
    assert abs((chosen < 2048).sum() - 1024) < 100
    kept_ids = np.bincount(probe.tokens.numpy()[sample[0]], minlength=60_001)
    assert kept_ids.max() == 1
    frequent = np.bincount(tokens.ravel(), minlength=60_001) >= 20
    n_frequent = int(frequent.sum())
    assert (kept_ids > 0)[frequent].sum() < 0.8 * n_frequent


def test_columns_say_what_the_nearest_neighbour_is(hand_written):
    """The embeddings of a model without positions are equal for equal tokens."""
    probe = Probe.from_tokens(random_tokens(64, 12) % 9, max_vectors=512)
    frame = measure(hand_written, probe, ["two_nn@all", "anisotropy@all"]).to_pandas()
    embeddings = frame[(frame["metric"] == "two_nn") & (frame["layer"] == 0)].iloc[0]
    assert embeddings["same_token_fraction"] > 0.9
    assert 0 < embeddings["same_input_fraction"] <= embeddings["same_token_fraction"]
    of_anisotropy = frame.query("metric == 'anisotropy'")
    assert of_anisotropy[["same_token_fraction", "same_input_fraction"]].isna().all(axis=None)


def cloud_of_occurrences(
    dim: int, n_types: int, n_vectors: int, radius: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vectors around types that fill ``dim`` dimensions, each type with occurrences in a
    small cloud of two dimensions; and the type of each vector, by Zipf's law.
    """
    generator = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(64, dim, generator=generator)).Q
    types = torch.randn(n_types, dim, generator=generator) @ axes.T
    weights = 1 / torch.arange(1, n_types + 1).double()
    label = torch.multinomial(weights, n_vectors, replacement=True, generator=generator)
    label[:n_types] = torch.arange(n_types)
    plane = torch.linalg.qr(torch.randn(64, 2, generator=generator)).Q
    occurrence = radius * torch.randn(n_vectors, 2, generator=generator) @ plane.T
    return types[label] + occurrence, label


@pytest.mark.parametrize("dim", [4, 8])
def test_repeats_hide_the_dimension_of_the_types(dim):
    """The dimension of all vectors is that of the occurrences of one type; of one vector of each
    type it is that of the types.
    """
    points, label = cloud_of_occurrences(dim, n_types=1024, n_vectors=4096, radius=0.01)
    tolerance = 3 * dim / math.sqrt(1024)
    of_all = two_nn(points).item()
    first = np.unique(label.numpy(), return_index=True)[1]
    of_types = two_nn(points[torch.from_numpy(first)]).item()
    assert of_all < dim - tolerance
    assert of_types == pytest.approx(dim, abs=tolerance)
    assert same_label_fraction(Cloud(points), label) > 0.5
