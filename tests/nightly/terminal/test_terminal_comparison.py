"""The table of several runs fits its width, and long names stay different."""

import pytest
from test_terminal import lines_of

from repdyn.terminal.comparison import MAX_WIDTH, shortened


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
