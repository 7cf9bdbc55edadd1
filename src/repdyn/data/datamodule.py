"""Text as a LightningDataModule: split, tokenized, in windows, with a fixed probe for the
tracker.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch.utils.data import DataLoader

from repdyn.data.tokens import BYTES, chunks, encode, load_tokenizer, special_tokens
from repdyn.data.windows import Windows, WindowsDataModule
from repdyn.probe.corpus import Corpus, load_corpus
from repdyn.probe.design import INDEPENDENT, class_names, resolve_design
from repdyn.probe.word_classes import NO_WORD, Lexicon, TokenWords, words_of_bytes, words_of_tokens
from repdyn.utils.files import cache_directory

if TYPE_CHECKING:
    from repdyn.probe import Probe

HELD_OUT_PERCENT = 5
"""Per cent of the text for validation, and as much for testing: enwik8 is customarily split 90/5/5.
"""
HELD_OUT_PERCENT_BUILTIN = 10
"""The same for the built-in text, of which 5 per cent would be too few windows."""


class TextDataModule(WindowsDataModule):
    """Windows of a text for next-token or masked-token training, split by bytes in the order of the
    text: 90/5/5, or 80/10/10 for the short built-in one.

    Args:
        text: "builtin" (the Python language reference, no download), "enwik8" (downloaded once), or
            the path of a text file or Wikipedia dump, plain, .gz, .xz, .bz2 or .zip.
        tokenizer: "bytes" (one token per byte), or the name or folder of any Hugging Face
            tokenizer.
        clean: reduce a Wikipedia dump to prose; plain text is never touched.
        design: sampling design of the probe, "independent", "dense" or "paper"; see
            :mod:`repdyn.probe.design`.
        classes: word classes the probe knows, as metrics such as "alignment@rare" need them:
            "words" for all of them, "none", or a list of function, content, frequent and rare
            (frequency is counted in the held-out text).
        max_bytes: use only so many bytes from the start of the text, counted before cleaning; all
            by default.
        encoding: that of the file, as Python calls it, such as "cp1251"; by default the one of its
            byte order mark, or UTF-8. With the vocabulary of bytes and without an encoding the
            bytes of a file are trained on as they are.
        bos: begin each window with the tokenizer's beginning-of-sequence token and add no other
            special token, whatever the objective.
        **training: arguments of :class:`repdyn.data.windows.WindowsDataModule`: objective,
            sequence_length, batch_size, num_workers, seed, max_vectors, batch_vectors,
            mask_probability.

    Raises:
        ValueError: an argument out of range, or a tokenizer that lacks what the objective needs.
    """

    def __init__(
        self,
        text: str = "builtin",
        tokenizer: str = BYTES,
        clean: bool = True,
        max_bytes: int | None = None,
        classes: list[str] | str = "none",
        design: str = INDEPENDENT.name,
        bos: bool = False,
        encoding: str | None = None,
        **training: Any,
    ) -> None:
        super().__init__(**training)
        self.text = text
        self.encoding = encoding
        self._held_out_percent = HELD_OUT_PERCENT_BUILTIN if text == "builtin" else HELD_OUT_PERCENT
        self.tokenizer_name = tokenizer
        self.clean = clean
        self.max_bytes = max_bytes
        self.classes = class_names(classes)
        self.design = resolve_design(design)
        self.tokenizer = load_tokenizer(tokenizer, for_encoder=self.objective == "masked")
        self._before, self._after = special_tokens(self.tokenizer, tokenizer, self.objective, bos)
        self._require_trainable(len(self._before) + len(self._after))

    @cached_property
    def bytes_per_token(self) -> float:
        """Return the bytes of text behind one token, measured on the validation split; 1 for the
        byte vocabulary.
        """
        return len(self._corpus.split(self._held_out_percent)[1]) / len(self._splits[1])

    @property
    def description(self) -> str:
        """Return a description of the text, for logs: name, size and hash."""
        corpus = self._corpus
        return f"{corpus.name}: {len(corpus.data):,} bytes of text, sha256 {corpus.sha256[:12]}"

    def prepare_data(self) -> None:
        """Download, clean and tokenize into the cache, in one process."""
        _ = self._splits

    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader(self._windows(self._splits[0]), shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return self._loader(self._windows(self._splits[1]), shuffle=False)

    def probe(self) -> Probe:
        """Return the fixed tokens that the tracker measures: windows of the text that nothing is
        trained on.
        """
        from repdyn.probe import Probe

        splits = ("validation", "test")[: len(self._probe_splits())]
        windows = self.probe_windows()
        probe = Probe.from_tokens(
            windows,
            n_windows=len(windows),
            special_ids=sorted(self.tokenizer.all_special_ids),
            max_vectors=self.max_vectors,
            batch_vectors=None if self.design.n_windows else self.batch_vectors,
            name=f"{self._corpus.name}, {' and '.join(splits)} split",
            design=self.design,
            mask_id=cast("int | None", self.tokenizer.mask_token_id),
            bytes_per_token=self.bytes_per_token,
        )
        return probe.with_words(self._probe_words(), self.classes) if self.classes else probe

    def probe_windows(self) -> np.ndarray:
        """Return windows spread evenly over the validation split, and over the test split too if
        that has too few.

        Returns:
            (n_sequences, length) int64 ids: as many windows as the design takes, or all if there
            are fewer.
        """
        return self._spread(
            [self._windows(tokens, self._probe_length) for tokens, _ in self._probe_splits()]
        )

    @property
    def _probe_length(self) -> int:
        design = self.design
        tokens = design.window_tokens or round(
            cast(int, design.window_characters) / self.bytes_per_token
        )
        return min(self.sequence_length, tokens)

    @property
    def _n_probe_windows(self) -> int:
        n_batches = max(1, self.max_vectors // self.batch_vectors)
        return self.design.required_windows(n_batches, self.batch_vectors, self._probe_length)

    def _probe_splits(self) -> list[tuple[np.ndarray, bytes]]:
        """Return the token ids and bytes of the splits that the probe is taken from."""
        _, *splits = zip(self._splits, self._corpus.split(self._held_out_percent), strict=True)
        enough = len(self._windows(self._splits[1], self._probe_length)) >= self._n_probe_windows
        return splits[:1] if enough else splits

    def _spread(self, windows: Sequence[Windows]) -> np.ndarray:
        sequences = [split[index][1].numpy() for split in windows for index in range(len(split))]
        chosen = (
            np.linspace(0, len(sequences) - 1, min(self._n_probe_windows, len(sequences)))
            .round()
            .astype(int)
        )
        return np.stack([sequences[index] for index in chosen])

    def _probe_words(self) -> TokenWords:
        """Return the words of the probe's tokens."""
        lexicon = Lexicon()
        words_of_splits = []
        no_words = [
            tuple(NO_WORD for _ in special_tokens) for special_tokens in (self._before, self._after)
        ]
        for _, piece in self._probe_splits():
            if self.tokenizer_name == BYTES:
                words = words_of_bytes(piece, lexicon)
            else:
                # in the pieces in which the ids were made: a tokenizer may split a piece's edges
                # otherwise than the middle of a text
                pieces = chunks(piece.decode(errors="replace"))
                words = np.concatenate(
                    [words_of_tokens(text, self.tokenizer, lexicon)[1] for text in pieces]
                )
            words_of_splits.append(Windows(words, self._probe_length, *no_words))
        return TokenWords(self._spread(words_of_splits).ravel(), lexicon)

    @cached_property
    def _corpus(self) -> Corpus:
        return load_corpus(
            self.text,
            clean=self.clean,
            max_bytes=self.max_bytes,
            encoding=self.encoding,
            as_bytes=self.tokenizer_name == BYTES,
        )

    @cached_property
    def _splits(self) -> list[np.ndarray]:
        """Return the token ids for training, validation and testing."""
        corpus = self._corpus
        percent = self._held_out_percent
        splits = [self._encode(piece) for piece in corpus.split(percent)]
        n_tokens = min(map(len, splits[1:]))
        window = self.sequence_length - len(self._before) - len(self._after)
        if n_tokens < window:
            raise ValueError(
                f"expected a text of at least {window * 100 // percent:,} tokens, so that the "
                f"{percent}% held out for validation and for testing hold a window of {window} "
                f"each, got {n_tokens} tokens there from {len(corpus.data):,} bytes "
                f"({corpus.name}); use a longer text or a smaller sequence_length"
            )
        return splits

    def _encode(self, data: bytes) -> np.ndarray:
        if self.tokenizer_name == BYTES:
            return np.frombuffer(data, dtype=np.uint8)  # equal to the tokenizer's, without its cost
        return encode(data, self.tokenizer, cache_directory() / "tokens")

    def _windows(self, tokens: np.ndarray, length: int | None = None) -> Windows:
        length = length or self.sequence_length
        return Windows(tokens, length, before=self._before, after=self._after)
