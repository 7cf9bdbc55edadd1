"""Figures of long runs leave out steps, but not those of the extreme values."""

import numpy as np

from repdyn.figures.heatmaps import heatmap
from repdyn.figures.run import profile_over_depth

STEPS = (0, *range(1000, 143001, 1000))


def test_profile_draws_the_steps_of_the_lowest_and_the_highest_mean(run):
    frame = run(n_blocks=2, steps=STEPS, anisotropy=lambda step, depth: {6000: 0.9, 77000: 0.1}.get(step, 0.5))
    labels = {line.get_label() for line in profile_over_depth(frame, "anisotropy").axes[0].lines}
    assert {"6,000", "77,000"} <= labels


def test_heatmap_draws_the_steps_of_the_lowest_and_the_highest_value(run):
    frame = run(n_blocks=2, steps=STEPS)
    cells = frame[(frame["metric"] == "anisotropy") & (frame["subset"] == "all") & (frame["layer"] == 1)]
    frame.loc[cells.index[cells["step"] == 77000], "value"] = 0.99
    frame.loc[cells.index[cells["step"] == 101000], "value"] = 0.001
    drawn = np.asarray(heatmap(frame, "anisotropy", "all").axes[0].images[0].get_array(), float)
    assert (drawn.max(), drawn.min()) == (0.99, 0.001)
