"""The summary of a run fits one screen, whatever the run."""

import math

import pytest
from printed_runs import EVERYTHING, printed, table_lines

from repdyn.views.console.runs import MAX_LAYERS

NAN = math.nan


@pytest.mark.parametrize("n_blocks", [1, 6, 12, 32, 120])
@pytest.mark.parametrize(
    "steps", [(0,), (0, 1), (0, *range(1000, 143001, 1000))], ids=["1 step", "2", "144"]
)
def test_one_screen_always(run, n_blocks, steps):
    frame = run(
        n_blocks=n_blocks, steps=steps, dimension=lambda step, depth: NAN if depth == 0 else 20.0
    )
    lines = printed(frame, **EVERYTHING).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    layers = [int(line.split()[0]) for line in table_lines(lines)]
    assert layers[0] == 0
    assert layers[-1] == n_blocks
    assert len(layers) == min(n_blocks + 1, MAX_LAYERS)


def test_one_screen_of_a_sweep_that_failed_in_many_ways(published, failures, frame_of):
    name = "an-organisation/a-model-with-a-rather-long-name"
    steps = (0, *range(1000, 143001, 1000))
    failed = [failures(step, "reason ".ljust(7 + step, "x"), run=name) for step in range(1, 90)]
    frame = frame_of(published(name, n_blocks=48, steps=steps), *failed)
    frame["probe"] = "one"
    lines = printed(frame, **EVERYTHING).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
