"""``repdyn study tokens``: a sentence's tokens against the vocabulary, layer by layer; and those of a text."""

from __future__ import annotations

import argparse
from pathlib import Path

from repdyn.studies import models as subjects
from repdyn.studies.models import LoadedModel
from repdyn.studies.output import Findings, print_written
from repdyn.studies.tokens import figures, summary
from repdyn.studies.tokens.measured import sentence_of, text_of, without_causal_mask
from repdyn.tables.frames import by_stack
from repdyn.tables.style import of_stack
from repdyn.utils.arguments import at_least

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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which sentence, which text, what it is compared with."""
    subjects.add_options(parser)
    group = parser.add_argument_group("what is looked at")
    group.add_argument("--sentence", default=SENTENCE, metavar="TEXT", help='(default: "%(default)s")')
    group.add_argument(
        "--nearest", type=at_least(1), default=10, metavar="K", help="nearest tokens (default: %(default)s)"
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
        type=at_least(3),
        default=128,
        help="tokens in a sequence, or the model's context where that is shorter (default: %(default)s)",
    )
    text.add_argument("--max-vectors", type=at_least(3), default=2048, help="tokens of the text (default: %(default)s)")


def run(options: argparse.Namespace) -> None:
    """Print the study of each model, and write its tables and figures.

    Raises:
        ValueError, OSError, CheckpointError: a mistaken option, or a model or text that is not as it must be.
    """
    for subject in subjects.subjects(options):
        folder = options.output / subject.folder_name
        _study(subject, subject.name, folder, options)
        if options.no_causal_mask:
            with without_causal_mask(subject, options.sentence):
                beside = folder.with_name(f"{folder.name}-no-causal-mask")
                _study(subject, f"{subject.name} (no causal mask)", beside, options)


def _study(subject: LoadedModel, name: str, folder: Path, options: argparse.Namespace) -> None:
    findings = Findings()
    _sentence(subject, name, options, findings)
    if options.text:
        _text(subject, name, options, findings)
    print_written(folder, findings.write(folder))


def _sentence(subject: LoadedModel, name: str, options: argparse.Namespace, findings: Findings) -> None:
    found, reasons = sentence_of(subject, options)
    findings.tables["tokens"], findings.tables["nearest"] = found.table, found.nearest
    about = "Compared with the input embeddings" + (
        ", the token's position embedding added to every row." if options.positions else "."
    )
    near = by_stack(found.nearest)
    for stack, table in by_stack(found.table).items():
        title, stem = of_stack(name, stack), "" if stack is None else f"{stack} "
        summary.print_sentence(title, table, [why for why in reasons if why.startswith(f"{stem}layer ")])
        for quantity in ("cosine", "rank"):
            drawn = figures.trajectory_figure(title, options.sentence, table, quantity, about)
            findings.figures[f"{stem}{quantity}"] = drawn
        findings.figures[f"{stem}heatmap"] = figures.heatmap(title, options.sentence, table, near[stack], about)


def _text(subject: LoadedModel, name: str, options: argparse.Namespace, findings: Findings) -> None:
    found = text_of(subject, options)
    findings.tables.update(classes=found.classes, steps=found.steps, density=found.density)
    steps = by_stack(found.steps)
    for stack, table in by_stack(found.classes).items():
        title, stem = of_stack(name, stack), "" if stack is None else f"{stack} "
        summary.print_classes(f"{title}: words of {found.name}", table)
        summary.print_steps(steps[stack])
        findings.figures[f"{stem}classes"] = figures.class_figure(title, found.name, table)
        findings.figures[f"{stem}steps"] = figures.step_figure(title, found.name, steps[stack])
    summary.print_density(found.density)
    findings.figures["density"] = figures.density_figure(name, found.name, found.density)
