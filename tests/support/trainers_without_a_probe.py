"""Trainers of Hugging Face whose tracker is given no probe."""

from __future__ import annotations

from typing import Any

from hugging_face_jobs import DATA
from jobs import tiny_language_model
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed


def trainer(folder, *callbacks: TrainerCallback, of=None, **changes: Any) -> Trainer:
    names = ("train_dataset", "eval_dataset", "data_collator", "processing_class")
    data = {name: changes.pop(name) for name in names if name in changes}
    settings = {
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 1,
        "seed": 3,
    }
    arguments = TrainingArguments(output_dir=str(folder), **settings | changes)
    set_seed(0)
    model = of or tiny_language_model("llama").model
    data = {"train_dataset": DATA, "eval_dataset": DATA[:8], **data}
    return Trainer(model, arguments, callbacks=list(callbacks), **data)
