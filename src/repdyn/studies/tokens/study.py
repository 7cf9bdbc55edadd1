"""``repdyn study tokens``: a sentence's tokens against the vocabulary, layer by layer; and those of a text."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

import pandas as pd
from matplotlib.figure import Figure

from repdyn.files import write_atomically
from repdyn.studies import subjects
from repdyn.studies.subjects import Subject
from repdyn.studies.tokens import figures, summary
from repdyn.studies.tokens.measured import sentence_of, text_of, without_causal_mask
from repdyn.views.drawing import save
from repdyn.views.style import of_stack

HELP = "The tokens of a sentence against the vocabulary, layer by layer: cosine and rank of each one's own embedding."
EXAMPLES = """examples:
  repdyn study tokens roberta-base -o FOLDER
  repdyn study tokens gpt2 --sentence "Time flies like an arrow." --nearest 20 -o FOLDER
  repdyn study tokens roberta-base --positions -o FOLDER       position embeddings added to every row
  repdyn study tokens gpt2 --no-causal-mask -o FOLDER          once more, with every token seeing all others
  repdyn study tokens roberta-base --text builtin -o FOLDER    function words and content words of a text

Every model has a folder of its own in FOLDER, with tables as CSV and figures as PNG and SVG.
"""

SENTENCE = "The £1 coin lies on the table."


@dataclass(frozen=True)
class _Findings:
    """What is written, by the stem of its file."""

    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which sentence, which text, what it is compared with."""
    subjects.add_options(parser)
    group = parser.add_argument_group("what is looked at")
    group.add_argument("--sentence", default=SENTENCE, metavar="TEXT", help='(default: "%(default)s")')
    group.add_argument(
        "--nearest", type=subjects.at_least(1), default=10, metavar="K", help="nearest tokens (default: %(default)s)"
    )
    group.add_argument(
        "--positions", action="store_true", help="add the token's position embedding to every row of the vocabulary"
    )
    group.add_argument(
        "--no-causal-mask", action="store_true", help="look at a decoder once more, with its causal mask taken off"
    )
    group.add_argument("--layers", help='name pattern of the blocks, such as "layers.*" (default: found)')
    text = parser.add_argument_group("the words of a text")
    text.add_argument("--text", metavar="SOURCE", help="enwik8, builtin, or a path (default: none)")
    text.add_argument(
        "--sequence-length",
        type=subjects.at_least(3),
        default=128,
        help="tokens in a sequence, or the model's context where that is shorter (default: %(default)s)",
    )
    text.add_argument(
        "--max-vectors", type=subjects.at_least(3), default=2048, help="tokens of the text (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> None:
    """Print the study of each model, and write its tables and figures.

    Raises:
        ValueError, OSError, CheckpointError: a mistaken option, or a model or text that is not as it must be.
    """
    for subject in subjects.subjects(options):
        _study(subject, subject.name, options)
        if options.no_causal_mask:
            with without_causal_mask(subject, options.sentence):
                _study(subject, f"{subject.name} (no causal mask)", options)


def _study(subject: Subject, name: str, options: argparse.Namespace) -> None:
    findings = _Findings()
    _sentence(subject, name, options, findings)
    if options.text:
        _text(subject, name, options, findings)
    folder = options.output / subjects.file_name(name)
    files = [folder / f"{table}.csv" for table in findings.tables]
    for file, table in zip(files, findings.tables.values(), strict=True):
        write_atomically(file, lambda path, rows=table: rows.to_csv(path, index=False))
    summary.print_written([*files, *save(findings.figures, folder)])


def _sentence(subject: Subject, name: str, options: argparse.Namespace, findings: _Findings) -> None:
    found, reasons = sentence_of(subject, options)
    findings.tables["tokens"], findings.tables["nearest"] = found.table, found.nearest
    about = "Compared with the input embeddings" + (
        ", the token's position embedding added to every row." if options.positions else "."
    )
    near = figures.by_stack(found.nearest)
    for stack, table in figures.by_stack(found.table).items():
        title, stem = of_stack(name, stack), "" if stack is None else f"{stack} "
        summary.print_sentence(title, table, [why for why in reasons if why.startswith(f"{stem}layer ")])
        for quantity in ("cosine", "rank"):
            drawn = figures.trajectory_figure(title, options.sentence, table, quantity, about)
            findings.figures[f"{stem}{quantity}"] = drawn
        findings.figures[f"{stem}heatmap"] = figures.heatmap(title, options.sentence, table, near[stack], about)


def _text(subject: Subject, name: str, options: argparse.Namespace, findings: _Findings) -> None:
    found = text_of(subject, options)
    findings.tables.update(classes=found.classes, steps=found.steps, density=found.density)
    steps = figures.by_stack(found.steps)
    for stack, table in figures.by_stack(found.classes).items():
        title, stem = of_stack(name, stack), "" if stack is None else f"{stack} "
        summary.print_classes(f"{title}: words of {found.name}", table)
        summary.print_steps(steps[stack])
        findings.figures[f"{stem}classes"] = figures.class_figure(title, found.name, table)
        findings.figures[f"{stem}steps"] = figures.step_figure(title, found.name, steps[stack])
    summary.print_density(found.density)
    findings.figures["density"] = figures.density_figure(name, found.name, found.density)
