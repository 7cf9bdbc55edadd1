"""Jobs of the Hugging Face Trainer."""

from __future__ import annotations

from jobs import tiny_language_model
from small import random_tokens
from transformers import Trainer, TrainingArguments, set_seed

from repdyn.callbacks import HuggingFaceTracker

DATA = [{"input_ids": tokens, "labels": tokens} for tokens in random_tokens(48, 12, seed=1)]


def model():
    set_seed(0)
    return tiny_language_model("llama").model


def trainer(folder, *callbacks, of=None, **changes) -> Trainer:
    settings = {
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 2,
        "seed": 3,
    }
    arguments = TrainingArguments(output_dir=str(folder), **settings | changes)
    return Trainer(
        of or model(),
        arguments,
        train_dataset=DATA,
        eval_dataset=DATA[:8],
        callbacks=list(callbacks),
    )


def tracker(small_probe, schedule=2, **changes):
    return HuggingFaceTracker(small_probe, schedule, **{"on_error": "raise"} | changes)
