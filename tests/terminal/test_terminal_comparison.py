import io
import math

import numpy as np
import pytest
from rich.console import Console
from synthetic_runs import SAMPLED

from repdyn.terminal.comparison import MAX_WIDTH, print_comparison, shortened

pytestmark = pytest.mark.slow

LEGEND = [
    "",
    "+ shown, - not shown, ? cannot be judged (criteria version 2, 2026-11-22)",
    "bell   bell-shaped anisotropy over depth (decoders)",
    "unif.  uniform anisotropy over depth (encoders)",
    "growth anisotropy grows, then stabilises (decoders)",
    "dim.   intrinsic dimension rises, then declines (decoders)",
    "ns     without first positions and special tokens (no_sink)",
    "anisotropy, two_nn: means over layers at the last checkpoint",
]
SAMPLING = f"sampling: {SAMPLED}, own window's neighbours left out"


def printed(frame, *, width=100, terminal=False):
    stream = io.StringIO()
    print_comparison(frame, console=Console(file=stream, width=width, force_terminal=terminal))
    return stream.getvalue()


def lines_of(frame, **given):
    return [line.rstrip() for line in printed(frame, **given).splitlines()]


def test_a_whole_table(published, finished, frame_of):
    frame = frame_of(
        published("lab/model-160m", parameters=162_000_000),
        published("lab/model-70m", parameters=70_400_000, steps=(0, 8), no_sink=lambda step, depth: depth),
        finished("other/bert", parameters=108_000_000),
    )
    lines = lines_of(frame)
    assert " ".join(lines[-2:]) == SAMPLING
    assert lines[:-2] == [
        "                              last anisotropy two_nn bell   unif.  growth dim.",
        "model      kind size done     step  all    ns    all all ns all ns all ns all",
        "model-70m  dec   70M    2        8 0.09  0.50   9.94  +  -   -  -   ?  ?   ?",
        "model-160m dec  162M   11      512 0.35  0.16   11.3  +  +   -  -   +  +   +",
        "bert       enc  108M    1 finished 0.30  0.20   8.21  -  -   +  +   ?  ?   ?",
        *LEGEND,
    ]


def test_failures_are_counted_and_named(published, failures, frame_of):
    frame = frame_of(
        published("lab/a", steps=(0, 8)),
        published("lab/b", steps=(0,)),
        failures(16, run="lab/a"),
        failures(32, run="lab/a"),
        failures(0, run="lab/gone"),
    )
    lines = lines_of(frame)
    assert lines[0].split()[:2] == ["done/", "last"]
    assert [line.split()[3] for line in lines[2:4]] == ["2/2", "1/0"]
    assert lines[-1] == "warning: nothing measured of lab/gone"


def test_what_is_not_known_or_was_not_measured(published, frame_of):
    frame = frame_of(published("lab/a", parameters=None, causal=None, steps=(0,)), published("lab/b", steps=(0,)))
    frame = frame[(frame["run"] == "lab/b") | (frame["metric"] != "two_nn") & (frame["subset"] != "no_sink")]
    (line,) = [line for line in lines_of(frame) if line.startswith("a ")]
    assert line.split() == ["a", "?", "?", "1", "0", "0.05", "-", "-", *"-?+????"]


def test_means_are_those_of_the_figures(published, frame_of):
    from repdyn.figures.comparison import ComparedRuns, means_over_layers

    frame = frame_of(published("lab/a", steps=(0, 8)), published("lab/b", steps=(0, 64)))
    drawn = [np.asarray(line.get_ydata())[-1] for line in means_over_layers(ComparedRuns(frame)).axes[0].lines]
    assert [line.split()[7] for line in lines_of(frame)[2:4]] == [f"{value:.3g}" for value in drawn]


def test_values_that_do_not_compare_are_said_to(published, frame_of):
    frame = frame_of(published("lab/a", steps=(0,)), published("lab/b", steps=(0,), n_vectors=512))
    assert lines_of(frame)[-1] == (
        "warning: these values do not compare, batches of different numbers of vectors: 4,096 (a), 512 (b)"
    )


@pytest.mark.parametrize("width", [80, 100, 200])
def test_width(published, finished, failures, frame_of, width):
    names = [f"organisation-{n}/a-model-with-a-long-name-of-{n}-billion" for n in range(10)]
    frame = frame_of(
        *(published(name, steps=(0, 143_000), parameters=10**9) for name in names), finished(), failures(8)
    )
    lines = lines_of(frame, width=width)
    assert max(map(len, lines)) <= min(width, MAX_WIDTH)
    shown = {line.split(" ")[0] for line in lines[2:13]}
    begins, ends = ("a-", "") if width == 80 else ("a-model-with-a-l", "me-of-")
    assert shown == {"bert", *(f"{begins}…{ends}{n}-billion" for n in range(10))}


def test_means_over_fewer_layers_are_marked(published, frame_of):
    def thin(step, depth):
        return math.nan if depth == 1 else 0.4

    frame = frame_of(
        published("lab/a", n_blocks=5, anisotropy=thin),
        published("lab/b", no_sink=thin, dimension=lambda step, depth: 8 if depth > 0.4 else math.nan),
        published("lab/c", dimension=lambda step, depth: math.nan),
    )
    lines = lines_of(frame)
    means = {line[0]: line.split()[5:8] for line in lines[2:5]}
    assert means["a"] == ["0.40*", "0.15", "11.4"]
    assert means["b"] == ["0.35", "0.40*", "8.00*"]
    assert means["c"] == ["0.35", "0.16", "-"]
    assert " ".join(lines[-2:]) == (
        "* a mean over fewer layers than the run has: 5 of 6 (a), 6 of 7 (b anisotropy no_sink), 4 of 7 (b two_nn all)"
    )


@pytest.mark.parametrize(
    ("names", "width", "expected"),
    [
        (["pythia-70m", "bloom-560m-intermediate"], 14, ["pythia-70m", "bloom-5…ediate"]),
        (["a-long-name-of-1-b", "a-long-name-of-2-b"], 12, ["a-long…f-1-b", "a-long…f-2-b"]),
        (
            ["some-long-one-model-name", "some-long-two-model-name"],
            10,
            ["some-long-\none-model-\nname", "some-long-\ntwo-model-\nname"],
        ),
    ],
    ids=["in the middle", "kept different", "wrapped where no cut keeps them different"],
)
def test_long_names(names, width, expected):
    assert shortened(names, width, "…") == expected


def test_no_control_characters_without_a_terminal(published, frame_of):
    frame = frame_of(published("lab/a", steps=(0,)), published("lab/b", steps=(0,)))
    assert "\x1b" not in printed(frame)
    assert "\x1b" in printed(frame, terminal=True)


def test_a_terminal_without_unicode(published, frame_of):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    frame = frame_of(published("labor/größer", steps=(0,)), published("labor/b", steps=(0,)))
    print_comparison(frame, console=Console(file=stream, width=80))
    stream.flush()
    assert "gr??er" in raw.getvalue().decode("ascii")


def test_a_run_on_two_probes_is_an_error(published, frame_of):
    frame = frame_of(published("lab/a", probe="one"), published("lab/a", probe="two"))
    with pytest.raises(ValueError, match="^expected the rows of one probe, got 2: 'one', 'two'"):
        printed(frame)


def test_each_stack_has_a_line(two_stacks, finished, frame_of):
    lines = lines_of(
        frame_of(two_stacks("lab/t5", parameters=60_500_000), finished("lab/bert", parameters=108_000_000))
    )
    assert [line.split() for line in lines[2:5]] == [
        ["t5", "(decoder)", "dec", "60M", "11", "512", "0.35", "0.16", "11.3", *"++--+++"],
        ["t5", "(encoder)", "enc", "60M", "11", "512", "0.30", "0.20", "11.4", *"??++--+"],
        ["bert", "enc", "108M", "1", "finished", "0.30", "0.20", "8.21", *"--++???"],
    ]
