"""x"""

import pytest
from judged_runs import NOT_SHOWN, SHOWN, UNJUDGED
from synthetic_runs import make_published, to_frame

from repdyn.tables.findings import findings_over_seeds
from repdyn.tables.runs import measured_runs
from repdyn.tables.seeds import seed_groups

STEPS = (0, 1, 8, 64)


def seed(number, *, factor=None, name="lab/m-seed{}", **given):
    """A seed whose dimension is a multiple of the layer's number plus one, the same at every step."""
    factor = number if factor is None else factor
    fields = {"steps": STEPS, "n_blocks": 2, "probe": "0123456789abcdef"} | given
    fields.setdefault("dimension", lambda step, depth: factor * (2 * depth + 1.0))
    return make_published(name.format(number), **fields)


def runs_of(*rows):
    return measured_runs(to_frame([row for of_one in rows for row in of_one]))


def groups_of(*rows, patterns=None):
    return seed_groups(runs_of(*rows), patterns)


DIFFERENT = {
    "model class": ({"model": "GPT2LMHeadModel"}, r"different model classes: GPTNeoXForCausalLM \(m-seed1\), GPT2"),
    "number of blocks": ({"n_blocks": 3}, r"different layers of .*: 0-2 of 2 blocks \(m-seed1\), 0-3 of 3 blocks"),
    "size": ({"parameters": 7}, r"different numbers of parameters: 7 \(m-seed2\), 1234567"),
    "probe": ({"probe": "f" * 16}, "different probes: 0123456789abcdef"),
    "precision": ({"dtype": "bfloat16"}, "different precisions: float32"),
    "selection of layers": ({"layers": '["h.*"]'}, "different selections of layers"),
    "design": ({"design": "dense"}, "different sampling designs: independent"),
    "vectors": ({"n_vectors": 512}, r"batches of different numbers of vectors: 4,096 \(m-seed1\), 512"),
    "settings": ({"settings": '{"discard": 0.2}'}, "different settings of "),
    "end": ({"steps": (0,), "stage": "finished"}, "finished models and trainings"),
}


@pytest.mark.parametrize(("given", "expected"), DIFFERENT.values(), ids=DIFFERENT)
def test_seeds_that_differ_in_more_are_refused(given, expected):
    with pytest.raises(ValueError, match=f"differ in their seed alone as seeds of lab/m, got {expected}"):
        groups_of(seed(1), seed(2, **given))


def test_patterns_name_other_seeds():
    rows = [seed(number, name=name) for number, name in enumerate(("lab/a-gpt2-x21", "lab/b-gpt2-x49", "lab/own"))]
    assert groups_of(*rows) == []
    (group,) = groups_of(*rows, patterns=["lab/*-gpt2-x*"])
    assert (group.label, len(group.members)) == ("lab/*-gpt2-x* (2 seeds)", 2)
    with pytest.raises(ValueError, match="a pattern of at least 2 runs as seeds, got 'lab/own' of 1 of lab/a-gpt2"):
        groups_of(*rows, patterns=["lab/own"])
    with pytest.raises(ValueError, match=r"one pattern of seeds for lab/a-gpt2-x21, got lab/\* and \*x21"):
        groups_of(*rows, patterns=["lab/*", "*x21"])
    assert groups_of(seed(1), seed(2), patterns=[]) == []


def growing(*ends, noise=0.5, **given):
    """Seeds whose anisotropy grows from 0.1 to these values by half of the training, and stays."""
    frames = []
    for number, end in enumerate(ends):
        rows = seed(number, anisotropy=lambda step, depth, end=end: end if step > 8 else 0.1, noise=noise, **given)
        frames.append(to_frame(rows))
    return frames


def judged(frames, name="growth"):
    return next(found for found in findings_over_seeds(frames) if (found.name, found.subset) == (name, "all"))


TIMES = {"steps": (0, 8, 32, 64)}


@pytest.mark.parametrize(
    ("ends", "verdict"), [((0.2, 0.2), SHOWN), ((0.1, 0.1), NOT_SHOWN), ((0.1, 0.2, 0.3), UNJUDGED)]
)
def test_seeds_that_disagree_leave_a_finding_open(ends, verdict):
    assert judged(growing(*ends, **TIMES)).verdict == verdict
