"""What a live run says of its probe's sampling design."""

from __future__ import annotations

import logging

from small import HandWritten, random_tokens

from repdyn import Probe, Tracker, open_store

SHARE = "lies in their own window of text, which this sampling design lets count"


def probe_of(design: str) -> Probe:
    tokens = random_tokens(6, 48)
    return Probe.from_tokens(tokens, max_vectors=192, batch_vectors=96, design=design)


def tracker(tmp_path, design: str, **settings) -> Tracker:
    return Tracker(
        HandWritten(causal=True),
        probe_of(design),
        1,
        store=tmp_path / "mine",
        report=False,
        **settings,
    )


def complaints(caplog) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if "own window of text" in record.getMessage()
    ]


def test_neighbours_in_the_own_window_that_count_are_warned_of_once(
    tmp_path, without_figures, caplog
):
    with caplog.at_level(logging.WARNING), tracker(tmp_path, "dense") as run:
        run.step()
        run.step()
    (told,) = complaints(caplog)
    rows = open_store(tmp_path / "mine").to_pandas().query("step == 0 and metric == 'two_nn'")
    assert rows["own_window_excluded"].eq(False).all()
    assert (
        f"the nearest neighbour of up to {rows['same_window_share'].max():.0%} of the vectors"
        in told
    )
    assert SHARE in told
    assert 'a probe of the design "independent"' in told


def test_neighbours_in_the_own_window_that_are_left_out_are_not(tmp_path, without_figures, caplog):
    with caplog.at_level(logging.WARNING), tracker(tmp_path, "independent") as run:
        run.step()
    rows = open_store(tmp_path / "mine").to_pandas().query("metric == 'two_nn'")
    assert rows["own_window_excluded"].eq(True).all()
    assert rows["same_window_share"].notna().all()
    assert complaints(caplog) == []
