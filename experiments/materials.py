"""What all runs of a plan share: the text, a tokenizer trained on it, the probes, and a record of
them.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from experiments.plan import BYTES, SPLITS, Plan, Run
from repdyn import Probe
from repdyn.data.datamodule import HELD_OUT_PERCENT, HELD_OUT_PERCENT_BUILTIN, TextDataModule
from repdyn.data.tokens import byte_tokenizer
from repdyn.models import objective_of
from repdyn.probe.corpus import load_corpus
from repdyn.utils.files import write_atomically

PAD, BOS, MASK = "[PAD]", "[BOS]", "[MASK]"
_TOKENIZER_BYTES = 10_000_000
"""Number of bytes of the training split that the tokenizer is trained on."""
_LIBRARIES = ("lightning", "numpy", "tokenizers", "torch", "transformers")


@dataclass(frozen=True)
class Materials:
    """The folder of an experiment, in which everything is that its runs share."""

    plan: Plan
    text: str
    """Name or path of the text, as for :class:`TextDataModule`."""
    folder: Path

    def prepare(self) -> None:
        """Train the tokenizer, tokenize the text and make the probes, unless that was done before.

        Raises:
            ValueError: the text is not that of the plan, or the folder is of another plan, text or
                versions.
        """
        corpus = load_corpus(self.text)
        expected = self.plan.text.get("sha256")
        if expected not in (None, corpus.sha256):
            raise ValueError(
                f"expected the text with sha256 {expected}, got {self.text}, {corpus.name} with "
                f"{corpus.sha256}; give that text, or write a plan of another name for yours: its "
                "rows are another experiment"
            )
        (self.folder / "probes").mkdir(parents=True, exist_ok=True)
        splits = corpus.split(
            HELD_OUT_PERCENT_BUILTIN if self.text == "builtin" else HELD_OUT_PERCENT
        )
        texts = {
            name: piece.decode(errors="replace") for name, piece in zip(SPLITS, splits, strict=True)
        }
        if not self._tokenizer_folder.exists():
            self._make_tokenizer(texts["train"]).save_pretrained(self._tokenizer_folder)
        for name, planned in self.plan.probes.items():
            if not self._probe_path(name).exists():
                probe = Probe.from_texts(
                    [texts[planned.split]],
                    self.tokenizer(),
                    design=planned.design,
                    max_vectors=planned.max_vectors,
                    batch_vectors=planned.batch_vectors,
                    name=f"{corpus.name}, {planned.split} split",
                )
                probe.save(self._probe_path(name))
        self.data(self.plan.runs[0]).prepare_data()
        self._compare_record({"name": corpus.name, "sha256": corpus.sha256})

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer of all runs."""
        return AutoTokenizer.from_pretrained(self._tokenizer_folder)

    def _make_tokenizer(self, text: str) -> PreTrainedTokenizerBase:
        if self.plan.vocab_size is None:
            return byte_tokenizer()
        return train_tokenizer(text, self.plan.vocab_size, bos=bool(self.plan.data.get("bos")))

    def probes(self) -> dict[str, Probe]:
        """Return the probes by name."""
        return {name: Probe.load(self._probe_path(name)) for name in self.plan.probes}

    def data(self, run: Run) -> TextDataModule:
        """Return the training data of a run, whose order depends on its seed alone."""
        return TextDataModule(
            text=self.text,
            tokenizer=BYTES if self.plan.tokenizer == BYTES else str(self._tokenizer_folder),
            objective=objective_of(run.model["family"]),
            seed=run.seed,
            **run.data,
        )

    def run_folder(self, run: Run) -> Path:
        return self.folder / run.arm / f"seed{run.seed}"

    def is_finished(self, run: Run) -> bool:
        return (self.run_folder(run) / "finished.json").exists()

    @property
    def _tokenizer_folder(self) -> Path:
        return self.folder / "tokenizer"

    def _probe_path(self, name: str) -> Path:
        return self.folder / "probes" / f"{name}.safetensors"

    def _compare_record(self, text: dict[str, str]) -> None:
        """Write what decides the values into experiment.json, or compare it with what an earlier
        start wrote there.
        """
        record: dict[str, Any] = {
            "plan": self.plan.name,
            "plan_digest": self.plan.digest,
            "text": text,
            "tokenizer_sha256": hashlib.sha256(
                (self._tokenizer_folder / "tokenizer.json").read_bytes()
            ).hexdigest(),
            "probes": {name: _describe(probe) for name, probe in self.probes().items()},
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in _LIBRARIES},
            },
        }
        path = self.folder / "experiment.json"
        if not path.exists():
            write_atomically(
                path, lambda partial: partial.write_text(json.dumps(record, indent=2) + "\n")
            )
        elif (earlier := json.loads(path.read_text())) != record:
            differing = sorted(name for name in record if earlier.get(name) != record[name])
            raise ValueError(
                f"expected {self.folder} to be of the same {', '.join(differing)}, got "
                f"{ {name: record[name] for name in differing} } instead of "
                f"{ {name: earlier.get(name) for name in differing} }; choose another --output"
            )


def train_tokenizer(text: str, vocab_size: int, *, bos: bool = True) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer trained on a text.

    Args:
        text: of which the first 10 MB are read.
        vocab_size: number of tokens, [PAD], [BOS] and [MASK] included.
        bos: put [BOS] before each sequence.

    Raises:
        ValueError: the text is too short for so many tokens.
    """
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, BOS, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(text[:_TOKENIZER_BYTES].splitlines(keepends=True), trainer)
    if backend.get_vocab_size() != vocab_size:
        raise ValueError(
            f"expected a text with {vocab_size} tokens, got {backend.get_vocab_size()}; give a "
            "longer text, or a smaller vocab_size"
        )
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, backend.token_to_id(BOS))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, bos_token=BOS, mask_token=MASK
    )


def unigram_entropy(probe: Probe) -> float:
    """Return the entropy of the token frequencies of a probe in nats: the loss of a model that
    knows no context.

    First positions are left out, which no model has to predict.
    """
    tokens = probe.tokens[~probe.is_sink].numpy()
    shares = np.array(list(Counter(tokens.tolist()).values())) / len(tokens)
    return float(-(shares * np.log(shares)).sum())


def _describe(probe: Probe) -> dict[str, Any]:
    return {
        "hash": probe.hash,
        "design": probe.design.name,
        "unigram_entropy": round(unigram_entropy(probe), 6),
    }
