"""The study of courses by cloud: its verdicts, and the committed table remade from its rows."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import token_courses
from benchmarks.nearest_tokens import Cloud


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ([0.2, 0.3, 0.11], "rises"),
        ([-0.2, -0.3, -0.11], "falls"),
        ([0.2, 0.3, 0.05], "undecided"),
        ([0.2, -0.2, 0.2], "undecided"),
        ([0.05, -0.09, 0.0], "absent"),
    ],
)
def test_a_sign_is_that_of_every_seed(changes, verdict):
    # catches a verdict by the mean over seeds, which one of them can make
    assert token_courses.sign(pd.Series(changes)) == verdict


def test_near_duplicates_are_counted_within_a_hundredth_of_the_radius():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(100, 20, generator=generator).double()
    vectors[:10] = vectors[10:20] + 1e-3
    labels = torch.arange(100)
    cloud = Cloud(vectors=vectors, tokens=labels, positions=labels, windows=labels)
    assert token_courses.near_duplicates(cloud) == 0.2


def test_the_table_of_signs_is_that_of_the_rows(monkeypatch, tmp_path, capsys):
    committed = pd.read_csv(token_courses.SIGNS)
    monkeypatch.setattr(token_courses, "SIGNS", tmp_path / "signs.csv")
    token_courses.judge(Namespace())
    capsys.readouterr()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "signs.csv"), committed)


def test_a_cloud_of_few_types_has_no_sign():
    # a byte-level text has some 120 types, of which the criteria make no claim
    rows = pd.read_csv(token_courses.COURSES)
    few = rows[(rows["cloud"] == "types") & (rows["n"] < token_courses.FEWEST)]
    signs = pd.read_csv(token_courses.SIGNS)
    of_bytes = signs[(signs["cloud"] == "types") & (signs["vocabulary"] == 256)]
    assert len(few)
    assert of_bytes.empty
    assert np.isfinite(signs[["0", "300"]].to_numpy()).all()
