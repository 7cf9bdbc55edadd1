"""What the terminal says of runs: one screen, in columns, without a sign that a name could smuggle
in.
"""

import io
import math
import re
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
from printed_runs import EVERYTHING, lines_of, printed, table_lines
from rich.console import Console
from synthetic_families import make_everything
from synthetic_runs import SAMPLED, measured_runs

from repdyn.metrics import METRICS
from repdyn.utils.console import PrintableConsole
from repdyn.views.alerts import RULES
from repdyn.views.console.metric_list import print_metrics
from repdyn.views.console.runs import (
    layer_table,
    print_closing,
    print_findings,
    print_summary,
    sparkline,
)
from repdyn.views.judging import stacks_of_run
from repdyn.views.judging.findings import findings, on_kind
from repdyn.views.tables.frames import by_stack, measurements
from repdyn.views.tables.series import metric_series
from repdyn.views.tables.texts import seconds_by_metric

NAN = math.nan


def test_a_whole_screen(run):
    text = printed(run(), **EVERYTHING)
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0] == "decoder-quickstart  GPTNeoXForCausalLM (decoder)"
    assert (
        " ".join(lines[1:3])
        == f"11 steps, 0 to 512; probe 3f2ab1c0, {SAMPLED}, own window's neighbours left out"
    )
    assert lines[4:6] == [
        "       anisotropy, all         anisotropy, no_sink     two_nn, all",
        "layer  first max last          first max last          first max last",
    ]
    assert (
        lines[9] == "    3  0.05 0.60 0.60 ▁▁▂▃▆▇█  0.05 0.25 0.25 ▁▁▂▃▆▇█  7.51 15.5 10.6 ▁▁▂▄▇▆▃"
    )
    assert lines[-2] == "tracking took 8.1 s, 1.0% of the training's 810.0 s"
    assert lines[-1] == "figures: runs/first/figures (2 files)"
    assert "warning" not in text


def test_no_control_characters_without_a_terminal(run):
    assert "\x1b" not in printed(run())
    assert "\x1b" in printed(run(), terminal=True)


def test_names_are_not_markup(run):
    assert printed(run(steps=(0,), run="sweep [bold]1[/bold]")).startswith(
        "sweep [bold]1[/bold]  GPTNeoX"
    )


def test_a_terminal_without_unicode(run):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    print_summary(
        *stacks_of_run(run(run="größer")), console=PrintableConsole(file=stream, width=80)
    )
    stream.flush()
    text = raw.getvalue().decode("ascii")
    assert text.startswith("gr??er")
    assert "first max last\n" in text.replace("\r", "")


def test_a_sweep_tells_its_cost_and_its_failures(published, failures, frame_of):
    text = printed(frame_of(published(steps=(0, 1)), failures(8, "gated"), failures(16, "gated")))
    assert [line.rstrip() for line in text.splitlines()[-3:]] == [
        "warning: 2 checkpoints failed: steps 8 and 16: gated; --retry-failed tries again",
        "per checkpoint: download 3.1 s, load 0.5 s, forward 2.1 s, kernels 1.4 s (20% of",
        "it in the kernels); 0.28 GB downloaded",
    ]


def test_a_finished_model_has_no_step(finished, frame_of):
    text = printed(frame_of(finished()))
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0] == "lab/bert  BertModel (encoder)"
    assert (
        " ".join(lines[1:3])
        == f"finished; probe 00000000, {SAMPLED}, own window's neighbours left out"
    )
    assert lines[4:7] == [
        "       anisotropy, all  anisotropy, no_sink  two_nn, all",
        "layer  value            value                value",
        "    0  0.30             0.20                 9.01",
    ]
    assert "step" not in text


def test_missing_values_are_counted_by_reason(run):
    frame = run(steps=(0, 1), dimension=lambda step, depth: NAN if depth < 0.2 else 10.0)
    frame.loc[(frame["metric"] == "anisotropy") & (frame["layer"] == 3), ["value", "reason"]] = [
        NAN,
        "infinite",
    ]
    lines = printed(frame).splitlines()
    # two layers at two steps; one layer at two steps on two subsets
    few = "2 cells: 2 distinct vectors, 3 needed"
    harmless = f"{few} (harmless: tokens repeat in layer 0)"
    assert f"no value in 4 of 14 cells of two_nn (all): {harmless}; {few}" in " ".join(lines)
    assert "no value in 2 of 14 cells of anisotropy (all), anisotropy (no_sink): infinite" in lines
    assert not any("nan" in line for line in lines)


@pytest.mark.parametrize(("stack", "n_layers"), [("encoder", 5), ("decoder", 7)])
def test_the_head_names_the_stack(two_stacks, frame_of, stack, n_layers):
    lines = printed(by_stack(frame_of(two_stacks()))[stack], **EVERYTHING).splitlines()
    assert lines[0] == f"lab/t5 ({stack})  T5ForConditionalGeneration ({stack})"
    assert [line.split()[0] for line in table_lines(lines)] == [
        str(layer) for layer in range(n_layers)
    ]


LEGEND = [
    "",
    "+ shown, - not shown, ? cannot be judged (criteria version 2, 2026-11-22)",
    "bell   bell-shaped anisotropy over depth (decoders)",
    "unif.  uniform anisotropy over depth (encoders)",
    "growth anisotropy grows, then stabilises (decoders)",
    "dim.   intrinsic dimension rises, then declines (decoders)",
    "ns     without first positions and special tokens (no_sink)",
    "anisotropy, two_nn: means over layers at the last checkpoint; * over fewer than were measured",
]


SAMPLING = f"sampling: {SAMPLED}, own window's neighbours left out"


def test_a_whole_table(published, finished, frame_of):
    frame = frame_of(
        published("lab/model-160m", parameters=162_000_000),
        published(
            "lab/model-70m", parameters=70_400_000, steps=(0, 8), no_sink=lambda step, depth: depth
        ),
        finished("other/bert", parameters=108_000_000),
    )
    lines = lines_of(frame)
    assert " ".join(lines[-2:]) == SAMPLING
    assert lines[:-2] == [
        "                              last anisotropy two_nn bell   unif.  growth dim.",
        "model      kind size done     step  all    ns    all all ns all ns all ns all",
        "model-70m  dec   70M    2        8 0.09  0.58   9.80  +  -          ?  ?   ?",
        "model-160m dec  162M   11      512 0.39  0.17   11.2  +  +          +  +   +",
        "bert       enc  108M    1 finished 0.30  0.20   8.08         +  +",
        *LEGEND,
    ]


def test_means_are_those_of_the_figures(published, frame_of):
    from repdyn.views.figures.comparison import means_over_layers

    frame = frame_of(published("lab/a", steps=(0, 8)), published("lab/b", steps=(0, 64)))
    (panel, *_) = means_over_layers(measured_runs(frame)).axes
    drawn = [np.asarray(line.get_ydata())[-1] for line in panel.lines]
    shown = [float(line.split()[7]) for line in lines_of(frame)[2:4]]
    assert shown == [float(f"{value:.3g}") for value in drawn]


def closing(frame, *, encoding="utf-8", **options):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    runs = stacks_of_run(frame, ())
    print_closing(
        runs,
        **{"store": Path("runs/my run")} | options,
        console=PrintableConsole(file=stream, width=80),
    )
    stream.flush()
    return [one.insights for one in runs], raw.getvalue().decode(encoding).splitlines()


def test_headline_report_and_what_to_type(run):
    (insights,), lines = closing(run(), report=Path("runs/my run/report.html"))
    assert lines[-2:] == ["report: runs/my run/report.html", "next: repdyn insights 'runs/my run'"]
    words = " ".join(" ".join(lines[:-2]).split())
    assert words.startswith(" ".join(insights.headline.split()))
    # what else changed follows, and the verdicts are one line
    assert " ".join(insights.statements[1].sentence.split()) in words
    (verdicts,) = (line for line in lines if line.startswith("published findings: "))
    assert re.search(r"\d shown.*; repdyn insights 'runs/my run' --findings$", verdicts)
    assert len(lines) <= 12


def test_the_verdicts_are_explained_where_the_last_words_say(run):
    frame = run()
    stream = io.StringIO()
    print_findings(stacks_of_run(frame, ()), Console(file=stream, width=80))
    words = " ".join(stream.getvalue().split())
    assert all(
        finding.sentence in words
        for finding in on_kind(findings(frame), True)
        if finding.subset == "all"
    )


def test_alerts_of_a_sound_run_are_not_red(run):
    """Those of the first steps; catches a sound quickstart that ends in red."""
    frame = run(dimension=lambda step, depth: 30.0 if step < 2 else 7.0)
    (measured,) = stacks_of_run(frame, RULES)
    assert measured.insights.status == "healthy"
    assert measured.alerts, "this run should have an early alert"
    stream = io.StringIO()
    print_summary(measured, console=Console(file=stream, width=80, force_terminal=True))
    assert "\x1b[31m" not in stream.getvalue()
    assert "which repdyn insights --alerts lists" in " ".join(stream.getvalue().split())


@pytest.fixture
def rows(frame_of):
    return lambda *metrics, **fields: frame_of(
        make_everything(
            **({"n_blocks": 2, "steps": (0, 8), "metrics": metrics or tuple(METRICS)} | fields)
        )
    )


def test_a_run_of_every_metric_is_one_screen(rows):
    lines = printed(rows()).splitlines()
    assert max(map(len, lines)) <= 80
    assert "more, which repdyn report shows" in " ".join(line.strip() for line in lines)


def test_the_cost_of_a_metric_is_that_of_all_its_layers_and_subsets(rows):
    frame = rows("norm", "step_length")
    frame["seconds"] = 0.5
    frame.loc[frame["metric"] == "step_length", "seconds"] = 0.25
    # norm: 3 layers on 2 subsets; step_length: 2 layers
    assert seconds_by_metric(measurements(frame)).to_dict() == {"norm": 3.0, "step_length": 0.5}


@pytest.mark.parametrize("several", [True, False], ids=["steps", "one step"])
def test_a_layer_without_any_value_has_a_dash(run, several):
    steps = (0, 8) if several else (0,)
    rows = measurements(
        run(n_blocks=2, steps=steps, dimension=lambda step, depth: NAN if depth == 0 else 10.0)
    )
    table = layer_table([metric_series(rows)["two_nn", "all"]], sparklines=True)
    stream = io.StringIO()
    Console(file=stream, width=80).print(table)
    lines = [line.split() for line in stream.getvalue().splitlines()[2:]]
    assert [line[-1] == "-" for line in lines] == [True, False, False]
    assert "nan" not in stream.getvalue()


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([NAN, NAN], "  "),
        ([5.0, 5.0], "▁▁"),
        ([0.0, NAN, 7.0, 3.0], "▁ █▄"),
        ([-2.0, -1.0], "▁█"),
    ],
    ids=["empty", "nan", "constant", "gap", "negative"],
)
def test_sparkline(values, bars):
    known = [value for value in values if not math.isnan(value)]
    assert sparkline(values, min(known, default=0.0), max(known, default=0.0)) == bars


def test_curves_of_a_column_have_one_scale_and_all_the_same_steps(run):
    """A layer that hardly changes beside one that doubles looks so; catches a scale of each row."""
    steps = tuple(range(0, 100, 7))
    rows = measurements(
        run(
            n_blocks=2,
            steps=steps,
            dimension=lambda step, depth: 10.0 + (step / 10 if depth > 0.7 else step / 1000),
        )
    )
    series = metric_series(rows)
    table = layer_table([series["two_nn", "all"], series["anisotropy", "all"]], sparklines=True)
    curves = [[cell.split()[-1] for cell in column.cells] for column in [*table.columns][1:]]
    assert len({len(bars) for column in curves for bars in column}) == 1
    assert set(curves[0][0]) == {"▁"}
    assert curves[0][-1][-1] == "█"


DOCUMENT = Path(__file__).parents[2] / "docs" / "all_metrics.md"


def test_the_document_names_every_metric():
    assert set(METRICS) <= set(re.findall(r"`(\w+)`", DOCUMENT.read_text(encoding="utf-8")))


def lines_of_of_metric_list(metric):
    page = run_path(str(DOCUMENT.parent / "site_metrics.py"))["markdown"]()
    assert page.startswith("# All metrics\n")
    return [line for line in page.splitlines() if line.startswith(f"| `{metric}` |")]


def test_what_a_line_tells():
    (line,) = lines_of_of_metric_list("attention_topic_gap")
    assert "| [-1, 1] | from layer 1 on, each head; attention weights, topics |" in line
    (line,) = lines_of_of_metric_list("step_length")
    assert "| [0, inf) | between layers; next layer |" in line
    (line,) = lines_of_of_metric_list("gride_8")
    assert "| `k=8`; 8 neighbours |" in line


def test_in_the_terminal():
    stream = io.StringIO()
    print_metrics(Console(file=stream, width=80))
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0] == "Geometry"
    assert set(METRICS) <= {line.split()[0] for line in lines if line}
    assert lines[-2] == "by default: anisotropy, two_nn; every one that the probe allows: all"
    assert lines[-1] == "with settings, on a subset of the tokens: 'two_nn[discard=0.8]@no_sink'"
    assert (
        "(needs a probe with topics)" in stream.getvalue().replace("\n", " ")
        or "probe with" in stream.getvalue()
    )
