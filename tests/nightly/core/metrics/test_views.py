"""Views of a cloud: the vectors are those of a naive forward pass, in every model and on every
path.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import random_tokens

from repdyn import Probe, kernels, measure
from repdyn.capture.model import locate
from repdyn.models import build_model
from repdyn.probe.design import DISTINCT, VIEWS

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "n_layers": 2,
    "n_heads": 2,
    "context_length": 32,
    "pad_token_id": 0,
}
SPECIAL = 2
N_WINDOWS = 48


def a_probe(design="independent"):
    """Windows of different lengths, half of which end with a special token."""
    tokens = random_tokens(N_WINDOWS, 12)
    mask = torch.ones_like(tokens)
    mask[::3, 9:] = 0
    tokens[1::2, -1] = SPECIAL
    tokens[::6, 8] = SPECIAL
    given = {"max_vectors": 192, "batch_vectors": 80, "special_ids": (SPECIAL,), "design": design}
    return Probe.from_tokens(tokens, mask, **given), tokens, mask.bool()


def a_model(family):
    torch.manual_seed(0)
    return build_model(family, **SIZES).eval()


def naive_states(model, tokens, mask):
    """By layer each window's states (length, dim), and those after the final norm, window by
    window.
    """
    layers = []
    normed = []
    blocks = locate(model).blocks
    for ids, is_token in zip(tokens, mask, strict=True):
        seen: list[torch.Tensor] = []

        def leave(_module, _args, output, seen=seen):
            seen.append(output[0] if isinstance(output, tuple) else output)

        def enter(_module, args, kwargs, seen=seen):
            seen.append(args[0] if args else kwargs["hidden_states"])

        hooks = [block.module.register_forward_hook(leave) for block in blocks]
        hooks.append(blocks[0].module.register_forward_pre_hook(enter, with_kwargs=True))
        with torch.no_grad():
            output = model.base_model(input_ids=ids[is_token].unsqueeze(0))
        for hook in hooks:
            hook.remove()
        layers.append([states.reshape(-1, 16).double() for states in seen])
        normed.append(output.last_hidden_state[0].double())
    return [list(of_layer) for of_layer in zip(*layers, strict=True)], normed


def naive_vectors(view, states, tokens):
    """The vectors of one window."""
    if view == "window_mean":
        return states.mean(0, keepdim=True)
    if view == "differences":
        return states[1:] - states[:-1]
    return states[[max(i for i, token in enumerate(tokens.tolist()) if token != SPECIAL)]]


@pytest.mark.parametrize("family", ["gpt_neox", "bert"])
@pytest.mark.parametrize("view", VIEWS)
def test_the_vectors_are_those_of_a_naive_forward_pass(family, view):
    probe, tokens, mask = a_probe()
    model = a_model(family)
    layers, _ = naive_states(model, tokens, mask)
    frame = (
        measure(model, probe, ["anisotropy@" + view, "two_nn"])
        .to_pandas()
        .query("metric == 'anisotropy'")
    )
    assert set(frame["subset"]) == {view}
    sample = probe.sample(view)
    for row in frame.itertuples():
        batches = []
        for batch in sample:
            flat = torch.cat(layers[row.layer])
            if view == "differences":
                batches.append(flat[batch + 1] - flat[batch])
            elif view in DISTINCT:
                batches.append(flat[batch])
            else:
                windows = probe.window_of(batch)
                assert len(set(windows)) == len(windows)
                batches.append(
                    torch.cat(
                        [
                            naive_vectors(view, layers[row.layer][w], tokens[w][mask[w]])
                            for w in windows
                        ]
                    )
                )
        expected = [kernels.anisotropy(batch).item() for batch in batches]
        assert row.value == pytest.approx(np.mean(expected), rel=1e-4)
        assert row.n_vectors == len(batches[0])
        if view in ("last_token", "window_mean"):
            assert row.vectors_per_window == 1


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("design", ["independent", "dense"])
def test_the_sample(view, design):
    probe, *_ = a_probe(design)
    windows = [probe.window_of(batch) for batch in probe.sample(view)]
    if design == "independent":
        assert probe.has_disjoint_batches(view)
        assert not set(windows[0]) & set(windows[1])
    if view == "differences":
        assert (probe.window_of(probe.sample(view).ravel() + 1) == np.concatenate(windows)).all()
    elif view not in DISTINCT:
        assert sum(map(len, windows)) == N_WINDOWS
    if view == "last_token":
        ends = probe.tokens[probe.sample(view).ravel()]
        assert not bool((ends == SPECIAL).any())


@pytest.mark.parametrize("family", ["gpt_neox", "llama", "modernbert"])
def test_the_final_norm(family):
    """The last layer's vectors are those that the model returns as last_hidden_state."""
    probe, tokens, mask = a_probe()
    model = a_model(family)
    _, normed = naive_states(model, tokens, mask)
    for view in ("all", "last_token", "differences"):
        frame = measure(model, probe, [f"anisotropy@{view}.normed"]).to_pandas()
        flat = torch.cat(normed)
        expected = []
        for batch in probe.sample(view):
            vectors = flat[batch + 1] - flat[batch] if view == "differences" else flat[batch]
            expected.append(kernels.anisotropy(vectors).item())
        last = frame.query("layer == layer.max()").iloc[0]
        assert last["subset"] == f"{view}.normed"
        assert last["value"] == pytest.approx(np.mean(expected), rel=1e-4)


@pytest.mark.parametrize("design", ["independent", "dense"])
def test_distinct_inputs_and_types_occur_once_in_a_batch(design):
    probe, tokens, mask = a_probe(design)
    ids = tokens[mask].numpy()
    positions = mask.nonzero()[:, 1].numpy()
    for batch in probe.sample("distinct_inputs"):
        assert len(set(zip(ids[batch], positions[batch], strict=True))) == len(batch)
    for batch in probe.sample("types"):
        assert len(set(ids[batch])) == len(batch)


def test_memory_and_other_values_do_not_change():
    probe = a_probe()[0]
    model = a_model("bert")
    alone = measure(model, probe).to_pandas().set_index(["metric", "subset", "layer"])["value"]
    everything = ["anisotropy", "two_nn", *(f"two_nn@{view}" for view in VIEWS)]
    beside = (
        measure(model, probe, everything)
        .to_pandas()
        .set_index(["metric", "subset", "layer"])["value"]
    )
    assert beside[alone.index].equals(alone)
    small = measure(model, probe, everything, states_bytes=100).to_pandas()["value"]
    assert small.to_numpy() == pytest.approx(beside.to_numpy(), nan_ok=True)
