"""Tests over seeds, against naive computations, and the verdicts of made-up experiments."""

from __future__ import annotations

from experiment_rows import BLOCKS, made_up_rows

from experiments.analyze import analyze, results
from experiments.effects import VARIANTS

ENTROPY = 6.9


def verdicts(**made_up) -> dict[str, str]:
    return {test.hypothesis.name: test.verdict for test in analyze(made_up_rows(**made_up), ENTROPY).tests}


def test_three_seeds_give_no_verdict_and_models_that_learned_nothing_none_either():
    assert set(verdicts(seeds=3).values()) == {"undecided"}
    assert set(verdicts(last_loss=6.5).values()) == {"untestable"}


def test_the_page_names_every_number():
    found = analyze(made_up_rows(), ENTROPY)
    page = results(found)
    assert "5 causal and 5 masked runs. Loss of the causal runs on probe a at the last step: 4.000" in page
    (row,) = [line for line in page.splitlines() if line.startswith("| H1 |")]
    assert "| 5 | +6" in row
    assert "| 0.0079 |" in row
    assert "**supported**" in row
    assert page.count("| causal | ") == page.count("| masked | ") == len(VARIANTS) + len(BLOCKS)
    assert "## Excluded runs\n\nNone." in page
    rows = made_up_rows()
    broken = rows.copy()
    broken.loc[
        (rows["run"] == "seed2/causal.a") & (rows["metric"] == "probe/loss") & (rows["step"] == 2000), "value"
    ] = 9
    found = analyze(broken, ENTROPY)
    assert "- seed2/causal: the last loss, 9.000, is more than 10 % above the lowest" in results(found)
    assert [test.n for test in found.tests] == [4, 4, 5, 4, 4, 4, 4, 4, 4, 4]
