"""x"""

import io
import math

import pytest
from rich.console import Console

from repdyn.terminal.comparison import MAX_WIDTH, print_comparison, shortened

pytestmark = pytest.mark.slow


def printed(frame, *, width=100, terminal=False):
    stream = io.StringIO()
    print_comparison(frame, console=Console(file=stream, width=width, force_terminal=terminal))
    return stream.getvalue()


def lines_of(frame, **given):
    return [line.rstrip() for line in printed(frame, **given).splitlines()]


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


def test_each_stack_has_a_line(two_stacks, finished, frame_of):
    lines = lines_of(
        frame_of(two_stacks("lab/t5", parameters=60_500_000), finished("lab/bert", parameters=108_000_000))
    )
    assert [line.split() for line in lines[2:5]] == [
        ["t5", "(decoder)", "dec", "60M", "11", "512", "0.35", "0.16", "11.3", *"++--+++"],
        ["t5", "(encoder)", "enc", "60M", "11", "512", "0.30", "0.20", "11.4", *"??++--+"],
        ["bert", "enc", "108M", "1", "finished", "0.30", "0.20", "8.21", *"--++???"],
    ]
