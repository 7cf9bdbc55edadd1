"""The table of several runs fits its width, and long names stay different."""

import pytest
from printed_runs import lines_of

from repdyn.views.console.runs import MAX_WIDTH


@pytest.mark.parametrize("width", [80, 100, 200])
def test_width(published, finished, failures, frame_of, width):
    names = [f"organisation-{n}/a-model-with-a-long-name-of-{n}-billion" for n in range(10)]
    frame = frame_of(
        *(published(name, steps=(0, 143_000), parameters=10**9) for name in names),
        finished(),
        failures(8),
    )
    lines = lines_of(frame, width=width)
    assert max(map(len, lines)) <= min(width, MAX_WIDTH)
    broken = "".join(line.split(" ")[0] for line in lines[2 : lines.index("")])
    assert all(f"a-model-with-a-long-name-of-{n}-billion" in broken for n in range(10))
