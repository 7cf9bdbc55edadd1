"""The benchmark that tries the certificate on millions of rows, on a few."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from repdyn.kernels import candidates

pytestmark = [pytest.mark.slow, pytest.mark.extended]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def certificate(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("certificate")


def run(certificate, monkeypatch, capsys, rows):
    monkeypatch.setattr(sys, "argv", ["certificate.py", "--rows", rows])
    certificate.main()
    return capsys.readouterr().out


def test_no_row_is_wrong(certificate, monkeypatch, capsys):
    printed = run(certificate, monkeypatch, capsys, "40000")
    assert printed.count(" 0 wrong") == 2


def test_a_certificate_that_promises_too_much_is_found_out(certificate, monkeypatch, capsys):
    # scores taken for distances, without any margin for their rounding
    monkeypatch.setattr(
        candidates.RoundedPoints, "max_distance", lambda self, scores, rows: scores.double().clamp_min(0).sqrt()
    )
    monkeypatch.setattr(
        candidates.RoundedPoints, "max_score", lambda self, reach, rows: reach.square().float() * 1.00001
    )
    with pytest.raises(SystemExit, match="the certificate is broken"):
        run(certificate, monkeypatch, capsys, "9000")


def test_clouds_are_distinct_and_of_many_shapes(certificate):
    drawn = [cloud for cloud, _ in zip(certificate.clouds(0), range(30), strict=False)]
    assert all(len(torch.unique(cloud, dim=0)) == len(cloud) for cloud in drawn)
    assert len({cloud.shape[1] for cloud in drawn}) > 10
