"""Which measured models the middle of a run resembles, and what the shipped ranges are of."""

import math
from pathlib import Path

import pytest
from synthetic_runs import DENSE, make_row, make_scalar, to_frame

from experiments.usual import OUTPUT, table
from repdyn.views.judging import DescribedRuns, stacks_of_run
from repdyn.views.judging.usual import COMPARED, PUBLISHED, layers_of_fifth, usual_ranges
from repdyn.views.report.sections import alerts_and_findings

ROOT = Path(__file__).parents[2]
REGRESSION = '{"discard": 0.1, "duplicates": "collapse", "estimator": "regression"}'


def rows_of(value, metric="anisotropy", n_layers=7, **fields):
    """Return the rows of a decoder of six blocks whose layers all have a value."""
    rows = [
        make_row(step=100, layer=layer, depth=layer / 6, metric=metric, value=value, **fields)
        for layer in range(n_layers)
    ]
    return [*rows, make_scalar(100, 2.0)]


def statements(value, **fields):
    return statements_of(rows_of(value, **fields))


def statements_of(rows):
    (run,) = stacks_of_run(to_frame(rows))
    return [each for each in run.insights.statements if each.kind == "usual"]


def test_the_shipped_ranges_are_those_of_the_committed_rows():
    """A file of older rows, or one that was edited by hand, would be compared with."""
    assert OUTPUT.read_text(encoding="utf-8") == table()


def test_each_range_names_its_source_probe_weights_and_date():
    """A range of which nobody can say where it is from would be taken for a fact."""
    for model in usual_ranges():
        assert model.weights
        assert model.measured.startswith("20")
        if model.kind == PUBLISHED:
            assert model.source.startswith("arXiv ")
        else:
            assert (ROOT / model.source).exists()
            assert len(model.probe) == 16
        assert model.metric in COMPARED


def test_the_middle_of_every_depth_has_a_layer():
    """Models of two or four blocks have no block whose centre lies in the middle fifth."""
    for n_blocks in range(1, 80):
        parts = [layers_of_fifth(n_blocks, fifth) for fifth in range(5)]
        assert all(parts)
        assert sorted({layer for part in parts for layer in part}) == [*range(1, n_blocks + 1)]


def test_a_run_inside_a_range_is_as_in_that_model():
    """The model whose range holds the value would be called unlike, or another one named first."""
    (said,) = statements(0.07)
    assert said.sentence == (
        "Anisotropy (all tokens) at mid depth (layers 3-4) is 0.07 at step 100: as in "
        "all-MiniLM-L6-v2 (0.0667 to 0.0839), a small decoder (docs/runs) (0.0784 to 0.0872) "
        "and 1 more; below stories260K (0.103); on other texts, by 4,096 vectors of the design "
        "independent as here."
    )
    assert said.evidence["value"] == pytest.approx(0.07)
    assert str(said.evidence["similar"]).startswith("all-MiniLM-L6-v2, ")
    assert said.evidence["below"] == "stories260K"


def test_a_run_outside_of_all_ranges_lies_between_two_models():
    """A value that no model has would be said to resemble model."""
    (said,) = statements(0.7)
    assert ": above stories260K (0.103); below Gemma 3 270M (0.969 to 0.989); on" in said.sentence
    assert "similar" not in said.evidence


def test_massive_norms_are_named_where_they_make_the_range():
    """An anisotropy of 0.99 by three vectors would look like one of the whole cloud."""
    (said,) = statements(0.99)
    assert (
        "SmolLM2-135M-Instruct (0.998 to 0.999; 0.0802 to 0.0939 without massive norms)"
        in said.sentence
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"metric": "participation_ratio"},
        {"value": math.nan, "reason": "all vectors are equal"},
        {"n_layers": 4},  # without layer 4, of the two in the middle
        {"design": None},
        {"metric": "two_nn", "settings": REGRESSION, "n_vectors": 2048},
        {"metric": "two_nn", "settings": REGRESSION, **DENSE, "n_vectors": 512},
        {"metric": "two_nn", "settings": "{}"},
        {"subset": "no_sink"},
    ],
)
def test_what_does_not_compare_is_not_compared(fields):
    """A metric without a range, no value, other settings or another number of vectors would be held
    against values that mean something else."""
    assert statements(**{"value": 0.07, **fields}) == []


def test_a_dimension_is_compared_on_the_cloud_that_decides():
    """A dimension of equal tokens would be compared though one without them was measured."""
    of_both = [
        make_row(
            step=100,
            layer=layer,
            depth=layer / 6,
            metric="two_nn",
            settings=REGRESSION,
            subset=subset,
            n_vectors=number,
            value=value,
        )
        for layer in range(7)
        for subset, number, value in (("all", 4096, 5.0), ("types", 2048, 17.6))
    ]
    (said,) = statements_of(of_both)
    assert said.subset == "types"
    assert "as in all-MiniLM-L6-v2 (17.5 to 17.9)" in said.sentence


@pytest.mark.parametrize(
    ("fields", "probes"),
    [
        ({"n_vectors": 512}, "by 4,096 vectors of the design independent, here by 512 vectors"),
        (
            {"design": "mine"},
            "by 4,096 vectors of the design independent, here by 4,096 vectors of the design mine",
        ),
    ],
)
def test_other_probes_are_said_in_the_same_sentence(fields, probes):
    """An anisotropy of another design would look as comparable as one of the same."""
    (said,) = statements(0.07, **fields)
    assert f"; on other texts, and roughly, {probes}" in said.sentence


def test_a_dense_run_is_compared_with_dense_ones():
    """The same decoders have 0.23 to 0.52 by independent windows and 0.09 to 0.24 by dense ones."""
    (said,) = statements(0.2, **DENSE)
    assert "small decoders (docs/experiment) (0.086 to 0.24)" in said.sentence
    assert "of the design dense as here" in said.sentence


def test_effective_ranks_compare_as_shares_of_the_width():
    """A narrow model would be below every wide model."""
    (said,) = statements(100.0, metric="effective_rank", settings='{"centred": true}')
    assert "is 100 of 128 at step 100: as in all-MiniLM-L6-v2 (297 to 309 of 384)" in said.sentence


@pytest.mark.parametrize(("n_runs", "heading"), [(1, "<h3>Beside"), (4, "<summary>Beside")])
def test_the_report_has_a_row_for_each_metric_and_the_sources(n_runs, heading):
    """A reader could not find out of what a range is, or would scroll past rows of many runs."""
    frames = {f"run{number}": to_frame(rows_of(0.07)) for number in range(n_runs)}
    runs = [stacks_of_run(frame, label=name)[0] for name, frame in frames.items()]
    section = alerts_and_findings(DescribedRuns(runs, frames))
    assert f"{heading} measured models" in section
    assert section.count(">Anisotropy (all tokens)<") == n_runs
    assert "docs/public_models/all-MiniLM-L6-v2.parquet" in section
    assert "2f618166f3af16a9" in section
