"""The command line of train.py: Lightning's CLI with a tracker attached and a fresh folder for
every run.
"""

import os
import re
import sys
import warnings
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from itertools import count, zip_longest
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
import wandb
import yaml
from jsonargparse import DefaultHelpFormatter
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar, TQDMProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn

from repdyn.callbacks import RepresentationDynamics, SavePretrainedCheckpoint
from repdyn.data.datamodule import TextDataModule
from repdyn.data.topic_datamodule import TopicDataModule
from repdyn.models import LanguageModel, objective_of
from repdyn.tracking.options import TrackingOptions
from repdyn.utils.console import PrintableConsole
from repdyn.utils.files import write_atomically
from repdyn.utils.mistyped import closest
from repdyn.utils.numbers import short_count
from repdyn.utils.printing import silence_notices
from repdyn.utils.records import read_yaml
from repdyn.utils.redaction import redacted
from repdyn.views.alerts import DEFAULT, Rule, RulesLike
from repdyn.views.publish.loggers import each_target, named_config

_EXAMPLES = """examples:
  train.py                                              the quickstart
  train.py fit --config configs/decoder_enwik8.yaml
  train.py fit --config configs/quickstart.yaml --model.family bert --trainer.max_steps 200
  train.py fit --config configs/quickstart.yaml --print_config
  train.py fit --help                                   the options
"""
_RUN_FOLDER = "REPDYN_RUN_FOLDER"
_CHECKED = ("metrics", "on_error", "log_layers", "ranks", "max_overhead")
"""Options of the tracker that are checked before anything is loaded."""


@dataclass
class Run:
    """Name, folder and loggers of a run.

    Args:
        name: name of the run; its files go to FOLDER/NAME/TIME. May have several parts separated by
            /.
        folder: folder of all runs.
        loggers: tensorboard, wandb, [tensorboard, wandb] or none; metrics.csv is always written.
        wandb_online: send to the W&B cloud (needs an account) instead of keeping W&B's files for a
            later "wandb sync".
        wandb_project: project in W&B.
        auto_precision: train in bf16-mixed on hardware that computes in bfloat16, and in fp32
            elsewhere, where bfloat16 is several times slower; --trainer.precision takes precedence.
    """

    name: str = "run"
    folder: str = "runs"
    loggers: Literal["tensorboard", "wandb", "none"] | list[Literal["tensorboard", "wandb"]] = (
        field(default_factory=lambda: ["tensorboard", "wandb"])
    )
    wandb_online: bool = False
    wandb_project: str = "repdyn"
    auto_precision: bool = False

    def new_folder(self) -> Path:
        """Return the folder of this run, named by the time; the first rank creates it, so that no
        other run shares it.

        Runs of one name that start in the same second, as those of a job array may, get ``_2``,
        ``_3``, ... behind it.
        """
        now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        parent = Path(self.folder) / self.name
        # Lightning passes its environment to the ranks that it starts
        if getattr(rank_zero_only, "rank", 0) != 0:
            return parent / os.environ.get(_RUN_FOLDER, now)
        folder = parent / now
        for number in count(2):
            try:
                folder.mkdir(parents=True)
                break
            except FileExistsError:
                folder = parent / f"{now}_{number}"
        os.environ[_RUN_FOLDER] = folder.name
        return folder

    def build_loggers(self, folder: Path) -> list[Logger]:
        # CSVLogger warns that it will delete what lies there: the folder is new, only W&B's part of
        # it may be there.
        warnings.filterwarnings("ignore", "Experiment logs directory .* exists and is not empty")
        folder_of_run = {"save_dir": Path(self.folder), "name": self.name, "version": folder.name}
        # The first logger's folder is the trainer's, and its name and version are the run's.
        loggers: list[Logger] = [CSVLogger(**folder_of_run)]
        names = [self.loggers] if isinstance(self.loggers, str) else self.loggers
        if "tensorboard" in names:
            loggers.append(TensorBoardLogger(**folder_of_run, sub_dir="tensorboard"))
        if "wandb" not in names:
            return loggers
        # W&B takes a temporary folder if its own does not exist yet
        folder.mkdir(parents=True, exist_ok=True)
        offline = not self.wandb_online
        # online it prints the address of the run; set up first, as Lightning passes it an option it
        # warns of
        wandb.setup(wandb.Settings(silent=offline, mode="offline" if offline else "online"))
        title = f"{self.name}/{folder.name}"
        return [*loggers, WandbLogger(title, folder, project=self.wandb_project, offline=offline)]


class SaveConfig(SaveConfigCallback):
    """Saves and logs the configuration without the passwords and tokens that somebody's loggers may
    be given.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        folder = trainer.log_dir  # all ranks must ask
        if trainer.is_global_zero and folder is not None:
            text = redacted(self.parser.dump(self.config, skip_none=False))
            write_atomically(
                Path(folder) / self.config_filename,
                lambda path: path.write_text(text, encoding="utf-8"),
            )
            try:
                named = named_config({"config": yaml.safe_load(text)})
                each_target(trainer.loggers, lambda target: target.log_config(named))
            except Exception as error:  # whatever a logger raises, the training goes on
                rank_zero_warn(f"the configuration could not be logged: {redacted(str(error))}")


class TrainCLI(LightningCLI):
    """``fit`` with the groups run, model, data, trainer, tracker, hf_checkpoints and checkpoint."""

    def __init__(self) -> None:
        silence_notices()
        super().__init__(
            LanguageModel,
            data_module(sys.argv[1:]),
            trainer_class=Trainer,
            seed_everything_default=0,
            save_config_callback=SaveConfig,
            auto_configure_optimizers=False,
            parser_kwargs={
                "description": "Pretrain a small transformer and watch its geometry.",
                "epilog": _EXAMPLES,
                "formatter_class": _KeepsLines,
            },
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {"fit": {"model", "train_dataloaders", "val_dataloaders", "datamodule"}}

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        parser = _SuggestingParser(**kwargs)
        parser.add_argument(
            "-c", "--config", action="config", help="YAML file with any of these options."
        )
        return parser

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_class_arguments(Run, "run")
        parser.add_lightning_class_args(RepresentationDynamics, "tracker")
        parser.add_lightning_class_args(SavePretrainedCheckpoint, "hf_checkpoints")
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.set_defaults(
            {
                "trainer.enable_model_summary": False,
                "checkpoint.every_n_train_steps": 500,
                "checkpoint.save_last": True,
                "checkpoint.save_on_exception": True,
                "checkpoint.enable_version_counter": False,
                # the options behind ``**options`` of the tracker, whose defaults no signature has
                **{
                    f"tracker.{option.name}": option.default
                    for option in fields(TrackingOptions)
                    if option.init
                },
            }
        )
        parser.link_arguments("model.family", "data.objective", compute_fn=objective_of)
        parser.link_arguments("data.sequence_length", "model.context_length")
        parser.link_arguments("data.vocab_size", "model.vocab_size", apply_on="instantiate")
        parser.link_arguments("data.pad_token_id", "model.pad_token_id", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        super().parse_arguments(parser, args)
        fit = self.config[self.config.subcommand]
        try:
            chosen = {
                name: fit.tracker.get(name)
                for name in _CHECKED
                if fit.tracker.get(name) is not None
            }
            TrackingOptions(**chosen, alerts=_rules(fit.tracker.get("alerts", DEFAULT)))
        except (ValueError, OSError) as error:
            parser.error(f"tracker: {error}")
        # Lightning's default loads whole pickles, and a checkpoint from elsewhere may hold code
        fit.weights_only = True if fit.weights_only is None else fit.weights_only
        if fit.ckpt_path and fit.weights_only and Path(fit.ckpt_path).is_file():
            _validate_checkpoint(parser, Path(fit.ckpt_path))

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        run: Run = self._get(self.config_init, "run")
        settings = self._get(self.config_init, "trainer")
        if run.auto_precision and settings["precision"] is None:
            kwargs["precision"] = (
                "bf16-mixed" if has_fast_bfloat16(settings["accelerator"]) else "32-true"
            )
        callbacks = settings["callbacks"] or []
        callbacks = [*callbacks] if isinstance(callbacks, Sequence) else [callbacks]
        has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        if settings["enable_progress_bar"] is not False and not has_bar:
            # Lightning's default, rich's bar, shows "epoch 0/-2" where steps limit the training
            kwargs["callbacks"] = [*callbacks, TQDMProgressBar()]
        try:
            folder = run.new_folder()
        except OSError as error:
            self.parser.error(
                f"run: expected a folder in which files can be made, got {error}; name one with "
                "--run.folder"
            )
        try:
            loggers = (
                settings["logger"] if settings["logger"] is not None else run.build_loggers(folder)
            )
            root = settings["default_root_dir"] or str(folder)
            return super().instantiate_trainer(logger=loggers, default_root_dir=root, **kwargs)
        except BaseException:
            # a mistaken option should leave no folder behind; rmdir removes only an empty one
            with suppress(OSError):
                folder.rmdir()
            raise

    @rank_zero_only
    def before_fit(self) -> None:
        console, model = PrintableConsole(), self.model.model
        size = f"{short_count(sum(weight.numel() for weight in model.parameters()))} parameters"
        console.print(
            f"model: {type(model).__name__}, {size}, {self.trainer.precision}", highlight=False
        )
        # A truncated or different file trains as well as the real one: whoever reads the log must
        # see which it was.
        console.print(f"text: {self.datamodule.description}", highlight=False, markup=False)


def data_module(arguments: Sequence[str]) -> type[TextDataModule] | type[TopicDataModule]:
    """Return the class that reads the last text named by the options or their configuration files.

    >>> data_module(["fit", "--data.text", "lda"]).__name__
    'TopicDataModule'
    """
    text = None
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        option, joined, value = argument.partition("=")
        value = value if joined else following
        if option == "--data.text":
            text = value
        elif option in {"-c", "--config"}:
            # errors in the file are reported where it is parsed
            with suppress(ValueError, OSError):
                groups = read_yaml(Path(value))
                data = groups.get("data") if isinstance(groups, dict) else None
                text = data.get("text", text) if isinstance(data, dict) else text
    return TopicDataModule if text == "lda" else TextDataModule


def _rules(rules: Any) -> RulesLike:
    """Convert alert rules written in the configuration file into the mappings of their fields."""
    if not isinstance(rules, list):
        return rules
    return [rule if isinstance(rule, Rule | dict) else vars(rule) for rule in rules]


def _validate_checkpoint(parser: LightningArgumentParser, path: Path) -> None:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # damaged files make it raise errors of any kind
        parser.error(
            f"expected a checkpoint of train.py as --ckpt_path, got {path}, which is damaged or "
            f"holds more than tensors and plain values ({type(error).__name__}); if you trust it, "
            "add --weights_only false"
        )
    if not isinstance(content, dict) or "state_dict" not in content:
        parser.error(
            f"expected a checkpoint of train.py as --ckpt_path, got {path}, which holds something "
            "else"
        )


def has_fast_bfloat16(accelerator: str = "auto") -> bool:
    """Return whether the device multiplies bfloat16 matrices in hardware: others emulate it,
    several times slower than float32. It is the GPU if there is one, unless ``accelerator`` is
    "cpu".
    """
    if accelerator != "cpu" and torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


class _KeepsLines(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """jsonargparse's help, with the examples one to a line."""


class _SuggestingParser(LightningArgumentParser):
    """A parser that says which option a mistyped one resembles."""

    def print_usage(self, file: Any = None) -> None:
        """Print nothing before an error: it would be a hundred lines of options, which its tip says
        how to list.
        """

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        unknown = re.search(
            r"does not accept option '([^']+)'|unrecognized arguments: --([\w.]+)", message
        )
        if unknown:
            parser = getattr(ex, "subcommand_parser", None) or self
            message += _hint(unknown[1] or unknown[2], parser)
        elif "argument subcommand: invalid choice" in message:
            # jsonargparse takes the value of an option that comes before 'fit' for the subcommand
            first = next((typed for typed in sys.argv[1:] if typed.startswith("--")), None)
            if first is not None:
                name = first.removeprefix("--").partition("=")[0]
                message = f"expected 'fit' before all options, got --{name}{_hint(name, self)}"
            message += "; as in: train.py fit --config FILE --run.name mine"
        super().error(message, ex)


def _hint(key: str, parser: LightningArgumentParser) -> str:
    close = closest(key, _option_names(parser))
    return f"; did you mean {close!r}?" if close and close != key else ""


def _option_names(parser: LightningArgumentParser) -> list[str]:
    names = [action.dest for action in parser._actions]
    for choices in (getattr(action, "choices", None) for action in parser._actions):
        if isinstance(choices, dict):  # a subcommand's own parser
            names += [name for inner in choices.values() for name in _option_names(inner)]
    return names
