"""The help of ``train.py``: the options that most runs need on one page, and all of them on request.

The pages are kept as files, since the parser that they come from takes many seconds to build: Lightning and all classes
with options are imported for it. The tests compare both; ``shipped_help`` says how a page is written again.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

_WIDTH = 80
_COLUMN = 34
_MAX_DEFAULT = 16
_GROUPS = {
    "run": "Run",
    "data": "Data",
    "model": "Model",
    "tracker": "Tracker of the representations",
    "trainer": "Trainer",
    "hf_checkpoints": "Checkpoints for repdyn sweep",
    "": "Other",
}
"""Title of each group of options by the first part of their names."""
_CHOSEN = {
    "model": ("family", "hidden_size", "n_layers", "n_heads", "dropout", "learning_rate", "warmup_steps"),
    "tracker": ("schedule", "metrics", "layers", "log_layers", "alerts", "report", "store", "on_error"),
    "trainer": (
        *("max_steps", "max_time", "accelerator", "devices", "num_nodes", "strategy", "precision"),
        *("accumulate_grad_batches", "gradient_clip_val", "val_check_interval", "limit_val_batches"),
        *("log_every_n_steps", "enable_progress_bar", "fast_dev_run"),
    ),
    "hf_checkpoints": ("schedule",),
    "": ("seed_everything", "ckpt_path", "weights_only"),
}
"""The options of a group that are shown; all of the groups that are not named here."""
_IN_SHORT = {
    "run.auto_precision": "bf16-mixed on hardware with bfloat16",
    "run.loggers": "tensorboard, wandb, both or none",
    "data.text": "builtin, enwik8, lda or a file",
    "data.tokenizer": "bytes, or one of Hugging Face",
    "data.max_bytes": "bytes to read of the text",
    "data.bos": "begin windows with the token [BOS]",
    "data.mask_probability": "share of tokens to predict",
    "model.family": "gpt_neox, llama, bert, ...",
    "model.dropout": "probability of dropout",
    "tracker.schedule": "N, a list, pythia or checkpoints",
    "tracker.layers": "name pattern of the blocks",
    "tracker.metrics": "their names, or all; see repdyn metrics",
    "tracker.log_layers": "metrics logged layer by layer",
    "tracker.alerts": "rules of the alerts",
    "tracker.report": "write report.html in the store",
    "tracker.on_error": "warn or raise",
    "trainer.max_steps": "steps to train",
    "trainer.max_time": "time to train, as DD:HH:MM:SS",
    "trainer.accelerator": "cpu, gpu, ... or auto",
    "trainer.devices": "their number, a list, or auto",
    "trainer.num_nodes": "machines of a distributed training",
    "trainer.strategy": "ddp, fsdp, ... or auto",
    "trainer.precision": "32-true, bf16-mixed, 16-mixed, ...",
    "trainer.accumulate_grad_batches": "batches for each optimizer step",
    "trainer.gradient_clip_val": "largest norm of the gradient",
    "trainer.val_check_interval": "batches between validations",
    "trainer.limit_val_batches": "batches of a validation",
    "trainer.log_every_n_steps": "steps between logged values",
    "trainer.enable_progress_bar": "show a progress bar",
    "trainer.fast_dev_run": "try the loop with so many batches",
    "hf_checkpoints.schedule": "steps to save, as tracker.schedule",
    "seed_everything": "seed of weights and batches",
    "ckpt_path": "checkpoint to resume from",
    "weights_only": "false runs code that a checkpoint holds",
}
"""Descriptions of options whose own do not fit a line."""
_EXAMPLES = """Examples:
  train.py fit --config configs/decoder_enwik8.yaml
  train.py fit --config configs/quickstart.yaml --model.family bert
  train.py fit --config configs/quickstart.yaml --print_config
  train.py fit --help all                  every option, at full length
"""


def shipped_help(arguments: Sequence[str]) -> str | None:
    """Return the page that train.py prints for these arguments, if they ask for one of the two that are files.

    A page is written again, 80 columns wide, by

        COLUMNS=80 python -c "from repdyn.cli.train import TrainCLI; TrainCLI()" fit --help > FILE

    >>> shipped_help(["fit", "--help"]).partition(" [")[0], shipped_help(["fit", "--help", "all"])
    ('usage: train.py fit', None)
    """
    *before, last = arguments or [""]
    pages = {(): "train_help.txt", ("fit",): "train_fit_help.txt"}
    if last not in {"-h", "--help"} or tuple(before) not in pages:
        return None
    return Path(__file__).with_name(pages[tuple(before)]).read_text(encoding="utf-8")


class HelpAction(argparse._HelpAction):
    """``--help`` prints the page of :func:`short_help`, ``--help all`` every option."""

    def __init__(self, option_strings: list[str], **settings: Any) -> None:
        super().__init__(option_strings, **settings)
        self.nargs, self.metavar = "?", "all"
        self.help = "show the options that most runs need, or all, and exit"

    def __call__(self, parser: argparse.ArgumentParser, namespace: object, values: Any, option: object = None) -> None:
        if values not in {None, "all"}:
            parser.error(f"expected --help or --help all, got --help {values}")
        has_options = any(action.dest.startswith("trainer.") for action in parser._actions)
        if has_options and values is None:
            print(short_help(parser))
        else:
            parser.print_help()
        parser.exit()


def short_help(parser: argparse.ArgumentParser) -> str:
    """Return the options that most runs need, a line for each, in groups."""
    lines = ["usage: train.py fit [-c FILE] [--GROUP.OPTION VALUE ...]", ""]
    lines += textwrap.wrap(
        "Every option can also stand in the YAML file, below the name of its group; an option on the command line "
        "overrides it.",
        _WIDTH,
    )
    for group, title in _GROUPS.items():
        lines += ["", f"{title}:", *map(_line, _options(parser._actions, group))]
    return "\n".join([*lines, "", _EXAMPLES.rstrip()])


def _options(actions: Iterable[argparse.Action], group: str) -> Iterator[argparse.Action]:
    """Yield the options of a group that are shown."""
    # a linked option, which cannot be given, has a description in place of its name
    known = {action.dest: action for action in actions if any(name.startswith("--") for name in action.option_strings)}
    prefix = f"{group}." if group else ""
    inside = [name.removeprefix(prefix) for name in known if name.startswith(prefix) and not name.endswith(".help")]
    for name in _CHOSEN.get(group, inside):
        if action := known.get(f"{prefix}{name}"):
            yield action


def _line(action: argparse.Action) -> str:
    option = next(name for name in action.option_strings if name.startswith("--"))
    is_short = isinstance(action.default, str | int | float) and 0 < len(str(action.default)) <= _MAX_DEFAULT
    default = f" [{action.default}]" if is_short else ""
    left = f"  {option}".ljust(_COLUMN - 1)
    text = _IN_SHORT.get(action.dest) or _first_clause(str(action.help or ""))
    return f"{left} {textwrap.shorten(text, _WIDTH - len(left) - 1 - len(default), placeholder=' ...')}{default}"


def _first_clause(text: str) -> str:
    return re.split(r"[.;:]? \(|[.;:,] |[.;:]$", " ".join(text.replace("``", "").split()), maxsplit=1)[0]
