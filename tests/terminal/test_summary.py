import io
import math
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from synthetic_runs import NO_DESIGN, SAMPLED, make_rows, make_scalar, to_frame

from repdyn.tables.findings import findings
from repdyn.tables.frames import by_stack
from repdyn.terminal.summary import MAX_LINES, print_summary

NAN = math.nan


def printed(frame, *, width=80, terminal=False, **given):
    stream = io.StringIO()
    print_summary(frame, console=Console(file=stream, width=width, force_terminal=terminal), **given)
    return stream.getvalue()


def table_lines(lines):
    """Those of the layers."""
    start = next(at for at, line in enumerate(lines) if line.startswith("layer ")) + 1
    return lines[start : lines.index("", start)]


EVERYTHING = {
    "figures": [Path("runs/first/figures/a.png"), Path("runs/first/figures/a.svg")],
    "tracking_seconds": 8.1,
    "total_seconds": 810.0,
}


@pytest.mark.slow
def test_a_whole_screen(run):
    text = printed(run(), **EVERYTHING)
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0] == "decoder-quickstart  GPTNeoXForCausalLM (decoder)"
    assert " ".join(lines[1:3]) == f"11 steps, 0 to 512; probe 3f2ab1c0, {SAMPLED}, own window's neighbours left out"
    assert lines[4:6] == [
        "       anisotropy, all         anisotropy, no_sink     two_nn, all",
        "layer  first max last          first max last          first max last",
    ]
    assert lines[9] == "    3  0.05 0.60 0.60 ▁▁▂▃▇██  0.05 0.25 0.25 ▁▁▂▃▇██  7.51 15.5 10.6 ▁▁▃▇█▅▄"
    assert lines[lines.index("published findings, criteria version 2, 2026-11-22") :][:5] == [
        "published findings, criteria version 2, 2026-11-22",
        "shown: bell-shaped anisotropy over depth (decoders), all and no_sink",
        "  all: middle/first +87% [85, 89], middle/last +441% [434, 447]",
        "  no_sink: middle/first +67% [65, 69], middle/last +238% [234, 242]",
        "not shown: uniform anisotropy over depth (encoders), all and no_sink",
    ]
    words = " ".join(" ".join(lines).split())
    for finding in findings(run()):
        assert finding.evidence in words
    assert lines[-2] == "tracking took 8.1 s, 1.0% of the training's 810.0 s"
    assert lines[-1] == "figures: runs/first/figures (2 files)"
    assert "warning" not in text


def test_rows_from_before_designs_had_names_say_so(run):
    text = " ".join(printed(run(**NO_DESIGN, own_window_excluded=None)).split())
    assert "probe 3f2ab1c0, 8 batches of 4,096 vectors, sampling design not recorded" in text


@pytest.mark.slow
@pytest.mark.parametrize("n_blocks", [1, 6, 12, 32, 120])
@pytest.mark.parametrize("steps", [(0,), (0, 1), (0, *range(1000, 143001, 1000))], ids=["1 step", "2", "144"])
def test_one_screen_always(run, n_blocks, steps):
    frame = run(n_blocks=n_blocks, steps=steps, dimension=lambda step, depth: NAN if depth == 0 else 20.0)
    lines = printed(frame, **EVERYTHING).splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    layers = [int(line.split()[0]) for line in table_lines(lines)]
    assert layers[0] == 0
    assert layers[-1] == n_blocks
    assert len(layers) >= min(n_blocks + 1, 10)


@pytest.mark.extended
@pytest.mark.slow
def test_one_screen_of_a_sweep_that_failed_in_many_ways(published, failures, frame_of):
    frame = frame_of(
        published("an-organisation/a-model-with-a-rather-long-name", n_blocks=48, steps=(0, *range(1000, 143001, 1000))),
        *(failures(step, f"reason {'x' * step}", run="an-organisation/a-model-with-a-rather-long-name") for step in range(1, 90)),
    )  # fmt: skip
    frame["probe"] = "one"
    lines = printed(frame, **EVERYTHING).splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= 80


def test_subsets_of_different_verdicts_stand_apart(run):
    lines = [line.rstrip() for line in printed(run(no_sink=lambda step, depth: 0.2)).splitlines()]
    at = lines.index("shown: bell-shaped anisotropy over depth (decoders), all")
    assert lines[at + 1] == "  middle/first +87% [85, 89], middle/last +441% [434, 447]"
    assert lines[at + 2] == "not shown: bell-shaped anisotropy over depth (decoders), no_sink"


def test_one_reason_for_all_findings_is_told_once(run):
    frame = run()
    frame.loc[(frame["metric"] == "train/loss") & (frame["step"] == 512), "value"] = NAN
    lines = [line.rstrip() for line in printed(frame).splitlines()]
    assert lines[-3:] == [
        "published findings, criteria version 2, 2026-11-22",
        "cannot be judged: all 7",
        "  the training failed: its last stored loss is nan",
    ]


@pytest.mark.slow
def test_no_control_characters_without_a_terminal(run):
    assert "\x1b" not in printed(run())
    assert "\x1b" in printed(run(), terminal=True)


def test_names_are_not_markup(run):
    assert printed(run(steps=(0,), run="sweep [bold]1[/bold]")).startswith("sweep [bold]1[/bold]  GPTNeoX")


def test_a_terminal_without_unicode(run):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    print_summary(run(run="größer"), console=Console(file=stream, width=80))
    stream.flush()
    text = raw.getvalue().decode("ascii")
    assert text.startswith("gr??er")
    assert "middle/first +87% [85, 89]" in text


def test_a_sweep_tells_its_cost_and_its_failures(published, failures, frame_of):
    text = printed(frame_of(published(steps=(0, 1)), failures(8, "gated"), failures(16, "gated")))
    assert [line.rstrip() for line in text.splitlines()[-3:]] == [
        "warning: 2 checkpoints failed: step 8, 16: gated; --retry-failed tries again",
        "per checkpoint: download 3.1 s, load 0.5 s, forward 2.1 s, kernels 1.4 s (20% of",
        "it in the kernels); 0.28 GB downloaded",
    ]


def test_a_finished_model_has_no_step(finished, frame_of):
    text = printed(frame_of(finished()))
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0] == "lab/bert  BertModel (encoder)"
    assert " ".join(lines[1:3]) == f"finished; probe 00000000, {SAMPLED}, own window's neighbours left out"
    assert lines[4:7] == [
        "       anisotropy, all  anisotropy, no_sink  two_nn, all",
        "layer  value            value                value",
        "    0  0.30             0.20                 9.01",
    ]
    assert lines.count("  one checkpoint") == 2  # of the growth on both subsets, and of the dimension
    assert "step" not in text


def test_missing_values_are_counted_with_the_commonest_reason(run):
    frame = run(steps=(0, 1), dimension=lambda step, depth: NAN if depth < 0.2 else 10.0)
    frame.loc[(frame["metric"] == "anisotropy") & (frame["layer"] == 3), ["value", "reason"]] = [NAN, "infinite"]
    frame.loc[(frame["step"] == 1) & (frame["subset"] == "no_sink"), "reason"] = None
    text = printed(frame)
    # two_nn: 2 layers at 2 steps; anisotropy: 1 layer at 2 steps on 2 subsets, one of them without its reason
    assert "warning: 8 of 42 values are left out, mostly: 2 distinct vectors, 3 needed" in text
    assert "nan" not in text


def test_few_distinct_embeddings_are_no_warning(run):
    frame = run(steps=(0, 1))
    embeddings = (frame["metric"] == "two_nn") & (frame["layer"] == 0)
    reason = "fewer than half of the vectors are distinct: 71 of 4096"
    few = [NAN, reason, 71, 4096, True]
    frame.loc[embeddings, ["value", "reason", "n_unique", "n_vectors", "on_distinct"]] = few
    text = printed(frame)
    assert "warning" not in text
    assert "layer 0, the embeddings, has no two_nn: 71 of 4,096 vectors are distinct" in text
    frame.loc[frame["layer"] == 1, ["value", "reason"]] = [NAN, reason]
    assert "warning: 6 of 42 values are left out, mostly: fewer than half of the" in printed(frame)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"tracking_seconds": 3.0}, "tracking took 3.0 s"),
        ({"tracking_seconds": 3.0, "total_seconds": 0.0}, "tracking took 3.0 s"),
        ({"tracking_seconds": 3.0, "kernel_seconds": 2.1}, "tracking took 3.0 s; kernels 70% of it"),
        ({"tracking_seconds": 3.0, "total_seconds": 1500.0}, "tracking took 3.0 s, 0.2% of the training's 1,500.0 s"),
    ],
    ids=["alone", "no training", "kernels", "share"],
)
def test_overhead(run, given, line):
    assert printed(run(steps=(0,)), **given).splitlines()[-1] == line


def test_nothing_is_said_of_what_is_not_given(run):
    text = printed(run(steps=(0,)))
    assert "tracking" not in text
    assert "figures:" not in text


@pytest.mark.slow
@pytest.mark.parametrize(("causal", "kind"), [(False, "(encoder)"), (None, "(decoder or encoder not known)")], ids=str)
def test_kind_of_model(run, causal, kind):
    assert printed(run(steps=(0,), causal=causal)).splitlines()[0].endswith(kind)


def test_curves_beyond_the_third_are_named(run):
    frame = run(steps=(0,))
    more = frame[frame["metric"] == "two_nn"].assign(subset="no_sink")
    assert "also measured: two_nn (no_sink)" in printed(pd.concat([frame, more]))


def test_more_than_the_default_metrics_have_a_line_each_below_the_screen(run):
    frame = run(steps=(0, 8))
    more = frame[frame["metric"] == "two_nn"].assign(metric="zeta")
    lines = printed(pd.concat([frame, more]), **EVERYTHING).splitlines()
    screen = lines[: lines.index("figures: runs/first/figures (2 files)") + 1]
    assert len(screen) <= MAX_LINES
    assert not any("also measured" in line for line in lines)
    assert lines[len(screen) + 1].startswith("family    metric")
    assert any(line.startswith("own       zeta") for line in lines)
    assert "s: seconds per checkpoint" in " ".join(line.strip() for line in lines[-3:])


@pytest.mark.slow
def test_what_has_no_value_at_all_is_no_warning_but_named_with_the_metrics(run):
    frame = run(steps=(0, 8))
    more = frame[frame["metric"] == "two_nn"].assign(metric="isoscore", value=NAN, reason="batch 0: infinite")
    text = printed(pd.concat([frame, more]))
    assert "warning" not in text
    assert "no value of isoscore: infinite" in text
    text = printed(pd.concat([frame, more, more.assign(subset="no_sink", value=0.5)]))
    assert "warning" not in text
    assert "no value of isoscore (all): infinite" in text


def test_a_first_checkpoint_without_one_before_it_is_no_warning(run):
    frame = run(steps=(0, 8))
    more = frame[frame["metric"] == "two_nn"].assign(metric="cka_previous")
    more.loc[more["step"] == 0, ["value", "reason"]] = [NAN, "batch 0: no earlier checkpoint of this run is at hand"]
    assert "warning" not in printed(pd.concat([frame, more]))


def test_large_and_small_values_keep_their_columns(run):
    frame = run(n_blocks=1, steps=(0, 1, 2), dimension=lambda step, depth: (0.004, 123.4, 123456.0)[step])
    assert "0.00 1e+05 1e+05" in printed(frame)


def test_two_runs_are_an_error(run):
    frame = pd.concat([run(steps=(0,), run="a"), run(steps=(0,), run="b")])
    with pytest.raises(ValueError, match="^expected the rows of one run, got 2: 'a', 'b'; select one"):
        printed(frame)


@pytest.mark.slow
@pytest.mark.parametrize(("stack", "n_layers"), [("encoder", 5), ("decoder", 7)])
def test_the_head_names_the_stack(two_stacks, frame_of, stack, n_layers):
    lines = printed(by_stack(frame_of(two_stacks()))[stack], **EVERYTHING).splitlines()
    assert lines[0] == f"lab/t5 ({stack})  T5ForConditionalGeneration ({stack})"
    assert [line.split()[0] for line in table_lines(lines)] == [str(layer) for layer in range(n_layers)]
    assert len(lines) <= MAX_LINES


def test_two_stacks_are_an_error(two_stacks, frame_of):
    with pytest.raises(ValueError, match="^expected the rows of one stack of blocks, got 2: 'encoder', 'decoder'"):
        printed(frame_of(two_stacks()))


def test_the_loss_on_the_probe_stands_in_the_head():
    on_probe = [make_scalar(step, 10.0 - step, "probe/loss") for step in (0, 8)]
    lines = printed(to_frame([*make_rows(steps=(0, 8), loss=False), *on_probe])).splitlines()
    assert lines[lines.index("") - 1].rstrip() == "loss on the probe 10 at step 0, 2 at step 8"
    assert len(lines) <= MAX_LINES
