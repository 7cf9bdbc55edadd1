"""Figures of several runs: colours, files, and no text on another."""

import colorsys

import pytest
from matplotlib.colors import to_rgb
from synthetic_runs import measured_runs

from repdyn.views.charts.on_matplotlib import save
from repdyn.views.figures.comparison import comparison_figures, profiles


def hue(line):
    return colorsys.rgb_to_hsv(*to_rgb(line.get_color()))[0]


def lightness(line):
    return colorsys.rgb_to_hls(*to_rgb(line.get_color()))[1]


def test_kinds_differ_in_hue_and_sizes_in_lightness(several):
    small, large, base, big = profiles(measured_runs(several), "two_nn").axes[0].lines
    assert 0.5 < hue(large) < 0.7, "decoders are blue"
    assert 0.0 < hue(base) < 0.12, "encoders are orange"
    assert lightness(small) > lightness(large) + 0.2
    assert lightness(base) > lightness(big) + 0.2
    assert small.get_marker() != large.get_marker()


def test_files_and_determinism(several, tmp_path):
    written = save(comparison_figures(measured_runs(several)), tmp_path / "new" / "folder")
    names = ["profiles_anisotropy", "profiles_two_nn", "means_over_layers"]
    assert [path.name for path in written] == [
        f"{name}.{kind}" for name in names for kind in ("png", "svg")
    ]
    again = save(
        comparison_figures(measured_runs(several.sample(frac=1, random_state=0))),
        tmp_path / "again",
    )
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


@pytest.mark.parametrize("n_runs", [2, 10, 24])
def test_no_text_lies_on_another(published, frame_of, n_runs):
    frame = frame_of(
        *(
            published(f"lab/a-model-of-size-{n}", steps=(0, 1, 1000), n_blocks=2, parameters=n)
            for n in range(n_runs)
        )
    )
    for figure in comparison_figures(measured_runs(frame)).values():
        figure.draw_without_rendering()
        (box,) = [found.get_window_extent() for found in figure.legends]
        assert box.x1 <= figure.bbox.x1
        assert box.y0 >= 0
        assert not any(box.overlaps(axes.get_tightbbox()) for axes in figure.axes)
        assert min(axes.get_window_extent().width for axes in figure.axes) > 300
