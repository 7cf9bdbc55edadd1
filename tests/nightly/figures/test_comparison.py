"""x"""

import colorsys
import math

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from repdyn.figures.comparison import ComparedRuns, comparison_figures, means_over_layers, profiles
from repdyn.figures.files import save
from repdyn.utils.attempts import attempts

STEPS = (0, 1, 8, 64, 512)


@pytest.fixture
def several(published, finished, frame_of):
    """Two decoders and two encoders, the larger one first in the alphabet."""
    return frame_of(
        published("lab/a-160m", steps=STEPS, parameters=160_000_000, n_blocks=8),
        published("lab/b-70m", steps=STEPS, parameters=70_000_000, n_blocks=4),
        finished("other/bert-large", parameters=300_000_000),
        finished("other/bert-base", parameters=100_000_000),
    )


def legend(figure):
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def hue(line):
    return colorsys.rgb_to_hsv(*to_rgb(line.get_color()))[0]


def lightness(line):
    return colorsys.rgb_to_hls(*to_rgb(line.get_color()))[1]


def test_kinds_differ_in_hue_and_sizes_in_lightness(several):
    small, large, base, big = profiles(ComparedRuns(several), "two_nn").axes[0].lines
    assert 0.5 < hue(large) < 0.7, "decoders are blue"
    assert 0.0 < hue(base) < 0.12, "encoders are orange"
    assert lightness(small) > lightness(large) + 0.2
    assert lightness(base) > lightness(big) + 0.2
    assert small.get_marker() != large.get_marker()


def test_files_and_determinism(several, tmp_path):
    written = save(comparison_figures(several), tmp_path / "new" / "folder")
    names = ["profiles_anisotropy", "profiles_two_nn", "means_over_layers"]
    assert [path.name for path in written] == [f"{name}.{kind}" for name in names for kind in ("png", "svg")]
    again = save(comparison_figures(several.sample(frac=1, random_state=0)), tmp_path / "again")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


@pytest.mark.parametrize("n_runs", [2, 10, 24])
def test_no_text_lies_on_another(published, frame_of, n_runs):
    frame = frame_of(
        *(published(f"lab/a-model-of-size-{n}", steps=(0, 1, 1000), n_blocks=2, parameters=n) for n in range(n_runs))
    )
    for figure in comparison_figures(frame).values():
        figure.draw_without_rendering()
        (box,) = [found.get_window_extent() for found in figure.legends]
        assert box.x1 <= figure.bbox.x1
        assert box.y0 >= 0
        assert not any(box.overlaps(axes.get_tightbbox()) for axes in figure.axes)
        assert min(axes.get_window_extent().width for axes in figure.axes) > 300


def without(*layers, n_blocks):
    missing = {layer / n_blocks for layer in layers}
    return lambda step, depth: math.nan if depth in missing else 0.3


@pytest.mark.parametrize(
    ("thin", "label", "n_noted"),
    [
        (("anisotropy", "no_sink", "dimension"), "a (4 of 5 layers)", 0),
        (("dimension",), "a (4-5 of 5 layers)", 1),
        ((), "a", 0),
    ],
    ids=["every panel", "one panel", "none"],
)
def test_means_over_fewer_layers_are_said(published, frame_of, thin, label, n_noted):
    curves = dict.fromkeys(thin, without(4, n_blocks=4))
    frame = frame_of(published("lab/a", n_blocks=4, **curves), published("lab/b", n_blocks=4))
    figure = means_over_layers(ComparedRuns(frame))
    assert legend(figure) == ["decoders", label, "b"]
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title.endswith("(over fewer layers: a)") for title in titles] == [True] * n_noted + [False] * (3 - n_noted)


def test_titles_stay_within_the_figure(published, finished, frame_of):
    runs = [published(f"lab/{name}", steps=(0, 8), n_blocks=2, dimension=without(0, n_blocks=2)) for name in "abc"]
    frame = frame_of(*runs, finished("lab/d"), finished("lab/e"), published("lab/f", causal=None, steps=(0, 16)))
    for figure in comparison_figures(frame).values():
        figure.draw_without_rendering()
        (title,) = [text for text in figure.texts if text.get_text() == figure.get_suptitle()]
        box = title.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1


def test_stacks_of_one_model_are_two_models(two_stacks, frame_of):
    frame = frame_of(two_stacks("lab/t5", steps=(0, 8)))
    figure = profiles(ComparedRuns(frame), "anisotropy")
    assert legend(figure) == ["decoder", "lab/t5 (decoder)", "encoder", "lab/t5 (encoder)"]
    assert figure.get_suptitle().splitlines()[0] == "Anisotropy over depth, 1 decoder, 1 encoder"
    decoder, encoder = figure.axes[0].lines
    assert 0.5 < hue(decoder) < 0.7, "decoders are blue"
    assert 0.0 < hue(encoder) < 0.12, "encoders are orange"
    assert (len(np.asarray(decoder.get_xdata())), len(np.asarray(encoder.get_xdata()))) == (7, 5)
    np.testing.assert_allclose(np.asarray(encoder.get_ydata(), float), 0.3)
    means = means_over_layers(ComparedRuns(frame))
    assert legend(means) == legend(figure)
    assert [len(axes.lines) for axes in means.axes] == [2, 2, 2]


def test_a_comparison_that_fails_keeps_none_of_the_others_from_its_file(several, tmp_path, monkeypatch):
    def broken(_):
        raise RuntimeError("no means today")

    monkeypatch.setattr("repdyn.figures.comparison.means_over_layers", broken)
    with pytest.raises(RuntimeError, match="^no means today$"), attempts() as attempt:
        save(comparison_figures(several, attempt), tmp_path, attempt)
    assert {path.name for path in tmp_path.glob("*.png")} == {"profiles_anisotropy.png", "profiles_two_nn.png"}
