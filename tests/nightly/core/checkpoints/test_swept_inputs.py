"""Sweeps of models of images, waveforms and pairs, on probes of inputs."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from other_inputs import FAMILIES, batches_of, model_of, probe_of, step, values
from sweeping import main

from repdyn import measure, open_store


@pytest.mark.parametrize("name", FAMILIES)
def test_a_sweep_of_saved_checkpoints_has_the_live_values(name: str, tmp_path, monkeypatch) -> None:
    family = FAMILIES[name]
    probe = probe_of(family)
    model = model_of(family)
    probe.save(tmp_path / "probe.safetensors")
    expected = []
    for number in (0, 1):
        model.save_pretrained(tmp_path / "run" / f"step{number}")
        expected.append(
            values(measure(model, probe, layers=family.layers).to_pandas().assign(step=number))
        )
        step(model, batches_of(family)[number], torch.optim.SGD(model.parameters(), lr=0.01))
    layers = (
        ["--layers", ",".join("=".join(each) for each in family.layers.items())]
        if family.layers
        else []
    )
    monkeypatch.setattr("repdyn.views.publish.results.show_store", lambda store, names: None)
    monkeypatch.setattr("repdyn.views.report.write_report", lambda _, path: path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as stop:
        main(
            [
                str(tmp_path / "run"),
                "--probe",
                str(tmp_path / "probe.safetensors"),
                "--device",
                "cpu",
                *layers,
            ]
        )
    assert stop.value.code == 0
    swept = values(open_store(tmp_path / "run" / "sweep").to_pandas())
    pd.testing.assert_frame_equal(
        swept, pd.concat(expected, ignore_index=True), check_exact=True, check_dtype=False
    )
