import io
from pathlib import Path

from rich.console import Console

from repdyn.kernels import two_nn
from repdyn.metrics import METRICS, Metric
from repdyn.terminal.metric_list import markdown, print_metrics

DOCUMENT = Path(__file__).parents[2] / "docs" / "all_metrics.md"


def test_the_document_is_what_the_table_gives():
    assert DOCUMENT.read_text(encoding="utf-8") == markdown(), "repdyn metrics --markdown > docs/all_metrics.md"


def lines_of(metric):
    return [line for line in markdown().splitlines() if line.startswith(f"| `{metric}` |")]


def test_every_metric_has_one_line_with_all_columns():
    for metric in METRICS:
        (line,) = lines_of(metric)
        assert len(line.split(" | ")) == 9


def test_what_a_line_tells():
    (line,) = lines_of("attention_topic_gap")
    cells = [cell.strip() for cell in line.strip("|").split(" | ")]
    assert cells[2:5] == ["[-1, 1]", "attention weight", "`all`"]
    assert cells[6:8] == ["at each layer from 1 on, of each head", "the attention weights, topics of the tokens"]
    (line,) = lines_of("step_length")
    assert "| [0, inf) | length | `all` |  | between a layer and the next | the next layer |" in line
    (line,) = lines_of("gride_8")
    assert "| `k=8` | at each layer | 8 neighbours of each vector |" in line


def test_a_metric_of_ones_own_is_there_too(monkeypatch):
    own = Metric("mine", two_nn.or_raise, "either a | or b", (0.0, 2.5), "me", subsets=("all", "rare"))
    monkeypatch.setitem(METRICS._metrics, "mine", own)
    assert markdown().endswith(
        "## Your own\n\n"
        "| metric | meaning | range | unit | tokens | settings | lies | needs | source |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| `mine` | either a \\| or b | [0, 2.5] | mine | `all`, `rare` |  | at each layer |  | me |\n"
    )
    stream = io.StringIO()
    print_metrics(Console(file=stream, width=80))
    assert "either a | or b" in stream.getvalue()


def test_in_the_terminal():
    stream = io.StringIO()
    print_metrics(Console(file=stream, width=80))
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0] == "Geometry"
    assert set(METRICS) <= {line.split()[0] for line in lines if line}
    assert lines[-2] == "by default: anisotropy, two_nn; every one that the probe allows: all"
    assert lines[-1] == "with settings, on a subset of the tokens: 'two_nn[discard=0.8]@no_sink'"
    assert "(needs a probe with topics)" in stream.getvalue().replace("\n", " ") or "probe with" in stream.getvalue()
