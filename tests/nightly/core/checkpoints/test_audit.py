"""What an audit finds in a history, from the names, checksums and sizes of its files alone."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from repdyn.checkpoints.audit import Finding, audit, copies_among
from repdyn.checkpoints.histories import CheckpointFiles, History
from repdyn.checkpoints.suites import KnownFault, PublishedModel
from repdyn.checkpoints.targets import Selection
from repdyn.checkpoints.weight_files import Files, ListedFile

MODEL = "model.safetensors"


def files(content: Mapping[str, str], n_bytes: int = 10**9) -> Files:
    return {
        name: ListedFile(n_bytes, sha256(text.encode()).hexdigest())
        for name, text in content.items()
    }


def at(step: int, content: str | Mapping[str, str], name: str = "", **more) -> CheckpointFiles:
    """Return a checkpoint with one file of this content, or with several files."""
    weights = files({MODEL: content} if isinstance(content, str) else content, **more)
    return CheckpointFiles(
        step=step, revision=name or f"step{step}", commit="0" * 40, weights=weights
    )


def history(
    *checkpoints: CheckpointFiles, main: CheckpointFiles | None = None, **more: Any
) -> History:
    last = more.pop("last", checkpoints[-1] if checkpoints else None)
    model = PublishedModel("model", "", "lab/model", known_faults=more.pop("known_faults", ()))
    selection = Selection("lab/model", (), model, **more)
    return History(selection, checkpoints, last=last, main=main)


def copies(of_history: History) -> dict[str, str]:
    return copies_among(audit(of_history))


def sharded(*content: str) -> dict[str, str]:
    count = len(content)
    return {
        f"model-{i:05d}-of-{count:05d}.safetensors": text for i, text in enumerate(content, start=1)
    }


def one(found: list[Finding]) -> Finding:
    (finding,) = found
    return finding


def test_a_sound_history():
    steps = [at(step, f"weights {step}") for step in (0, 1, 512, 1000)]
    assert audit(history(*steps, main=at(1000, "weights 1000", "main"))) == []
    assert audit(history(*steps, main=at(1000, "averaged", "main"))) == []
    assert audit(history()) == []


def test_the_weights_of_the_last_step_under_other_names():
    steps = (at(0, "final"), at(1, "own"), at(512, "final"), at(1000, "final"))
    assert copies(history(*steps)) == {"step0": "step1000", "step512": "step1000"}
    assert one(audit(history(*steps, main=at(1000, "final", "main")))) == Finding(
        severity="fault",
        kind="final weights",
        sentence="the final weights, those of step1000, under 2 other names: step0, step512",
        revisions=("step0", "step512"),
        steps=(0, 512),
        same_as="step1000",
    )


def test_the_weights_of_main_where_the_last_step_has_others():
    """As in pythia-2.8b: most steps serve the main branch, some another file, which is that of the
    last step.
    """
    steps = (at(0, "main"), at(1, "main"), at(54, "second"), at(66, "own"), at(143, "second"))
    of_history = history(*steps, main=at(143, "main", "main"))
    assert copies(of_history) == {"step0": "main", "step1": "main", "step54": "step143"}
    assert [finding.sentence for finding in audit(of_history)] == [
        "the final weights, those of main, under 2 other names: step0, step1",
        "the final weights, those of step143, under 1 other name: step54",
    ]


def test_one_step_that_main_was_taken_from():
    best = history(at(0, "a"), at(1, "best"), at(2, "c"), main=at(2, "best", "main"))
    finding = one(audit(best))
    assert finding.severity == "remark"
    assert finding.kind == "main"
    assert finding.revisions == ("step1",)


def test_the_same_weights_at_several_steps():
    steps = (at(0, "a"), at(101, "b"), at(175, "b"), at(300, "b"), at(301, "c"))
    assert copies(history(*steps)) == {"step175": "step101", "step300": "step101"}
    finding = one(audit(history(*steps)))
    assert finding.kind == "identical"
    assert finding.steps == (101, 175, 300)
    assert finding.same_as == "step101"


def test_one_file_of_the_final_weights_among_others():
    """As in pythia-12b: the first of three files is that of the end, the others are the step's
    own.
    """
    end = sharded("end", "end 2", "end 3")
    steps = (
        at(49, sharded("own 49", "b", "c")),
        at(50, sharded("end", "d", "e")),
        at(58, sharded("end", "f", "g")),
        at(143, end),
    )
    of_history = history(*steps, main=at(143, end, "main"))
    finding = one(audit(of_history))
    name = "model-00001-of-00003.safetensors"
    assert finding.kind == "shared file"
    assert finding.steps == (50, 58)
    assert finding.same_as == "step143"
    assert finding.files == (name,)
    assert (
        finding.sentence
        == f"the final weights, those of step143, in 1 of 3 weight files, {name}: step50, step58"
    )


def test_a_file_that_is_the_same_everywhere_is_no_fault():
    steps = [at(step, sharded("frozen", f"own {step}")) for step in range(3)]
    finding = one(audit(history(*steps)))
    assert finding.severity == "remark"
    assert finding.kind == "frozen file"


def test_weights_in_another_format():
    both = CheckpointFiles(
        step=9,
        revision="main",
        commit="0" * 40,
        weights=files({MODEL: "s"}),
        other_weights=files({"pytorch_model.bin": "p"}),
    )
    steps = (
        at(0, {"pytorch_model.bin": "p"}),
        at(8, {"pytorch_model.bin": "o"}),
        at(9, {"pytorch_model.bin": "p"}),
    )
    assert one(audit(history(*steps, main=both))).same_as == "step9"
    assert one(audit(history(steps[0], steps[1], last=both))).revisions == ("step0",)


def test_missing_weights_and_steps():
    gone = CheckpointFiles(4, "step4", "1" * 40, problem="it has no weights")
    partial_weights = at(
        8,
        {"model-00001-of-00003.safetensors": "a", "model-00003-of-00003.safetensors": "c"},
        n_bytes=5 * 10**8,
    )
    reported = audit(history(at(0, "z"), gone, partial_weights, missing_steps=(2, 16)))
    assert [finding.sentence for finding in reported] == [
        "step4: it has no weights",
        "step8: weight files are missing: model-00002-of-00003.safetensors",
        "described, but not on the hub: 2, 16",
    ]
    assert {finding.severity for finding in reported} == {"fault"}


def test_the_first_two_steps_may_be_the_same():
    """A live run whose learning rate starts at zero has the same weights at steps 0 and 1."""
    steps = (at(0, "a"), at(1, "a"), at(2, "c"))
    finding, reported = audit(
        history(*steps, known_faults=(KnownFault((0, 1), "the same weights", "https://a"),))
    )
    assert finding.severity == "remark"
    assert finding.kind == "no update"
    assert reported.sentence == "users reported the same weights (https://a): step0, step1"
    assert one(audit(history(at(0, "a"), at(1, "a"), at(2, "a"), at(4, "b")))).kind == "identical"
    assert one(audit(history(at(0, "a"), at(1, "a")))).kind == "final weights"
