"""Settings of metrics: checked at once, told in the name, and measured side by side."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch
from small import random_tokens

from repdyn import Probe, measure
from repdyn.metrics import METRICS, resolve
from repdyn.metrics.metric import imported
from repdyn.probe.design import PAPER


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe.from_tokens(random_tokens(40, 16), max_vectors=192, batch_vectors=96)


@pytest.fixture(scope="module")
def paper(probe) -> Probe:
    return replace(probe, design=PAPER)


def names_of(metrics, probe=None) -> list[str]:
    """Return the names without the subsets, several of which may have one."""
    return list(dict.fromkeys(request.name for request in resolve(metrics, probe)))


@pytest.mark.parametrize("name", METRICS)
def test_the_table_lists_every_setting_of_a_kernel(name):
    metric = METRICS[name]
    parameters = inspect.signature(imported(metric.kernel)).parameters.values()
    assert set(metric.settings) == {of.name for of in parameters if of.kind is of.KEYWORD_ONLY}


def test_python_and_strings_spell_alike():
    spelled = "two_nn[discard=0.8,duplicates=count]"
    assert names_of(["two_nn[duplicates=count, discard=0.80]"]) == [spelled]
    assert names_of(["two_nn[discard=0.1]"]) == ["two_nn"]
    # a Metric whose settings were put in otherwise is no other than one that was asked for with
    # them
    replaced = replace(METRICS["two_nn"], settings={**METRICS["two_nn"].settings, "discard": 0.8})
    assert names_of([replaced, "two_nn[discard=0.8]"]) == ["two_nn[discard=0.8]"]


def test_a_design_says_what_a_plain_name_means(probe, paper):
    (plain,) = resolve(["two_nn@all"], paper)
    assert plain.name == "two_nn"
    assert plain.settings["discard"] == 0.8
    assert plain.settings["duplicates"] == "count"
    assert names_of(["two_nn[discard=0.1]"], paper) == ["two_nn[discard=0.1]"]
    assert names_of(["two_nn[discard=0.1,duplicates=collapse]"], paper) == [
        "two_nn[discard=0.1,duplicates=collapse]"
    ]
    # in this design these are the same
    assert names_of(
        ["two_nn", "two_nn[discard=0.8]", "two_nn[discard=0.8,duplicates=count]"], paper
    ) == ["two_nn"]
    assert names_of(["two_nn", "two_nn[discard=0.8]"], probe) == ["two_nn", "two_nn[discard=0.8]"]
    assert names_of("all", paper) == names_of("all", probe)
    of_all = [request for request in resolve("all", paper) if request.name == "two_nn"]
    assert {request.settings["discard"] for request in of_all} == {0.8}


def test_where_duplicates_count_few_distinct_vectors_are_no_smaller_sample(probe):
    few = Probe.from_tokens(random_tokens(40, 16, vocabulary=30), max_vectors=192, batch_vectors=96)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(30, 8), torch.nn.ModuleList([torch.nn.Linear(8, 8)])[0]
    )
    (counting,) = resolve(["two_nn[duplicates=count]@all"])
    (collapsing,) = resolve(["two_nn@all"])
    assert not counting.collapses_duplicates
    assert collapsing.collapses_duplicates
    frame = measure(model, few, ["two_nn", "two_nn[duplicates=count]"], ["1"]).to_pandas()
    plain, counted = (
        frame.query("metric == @name") for name in ("two_nn", "two_nn[duplicates=count]")
    )
    assert plain["on_distinct"].all()
    assert plain["reason"].str.startswith("fewer than half").all()
    assert not counted["on_distinct"].any()
    assert not counted["reason"].fillna("").str.startswith("fewer than half").any()
