"""Text as a LightningDataModule: split, tokenized, in windows, with a fixed probe for the tracker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from repdyn.data.byte_tokenizer import bytes_to_ids
from repdyn.data.source import load_corpus
from repdyn.data.text import Corpus, cache_directory
from repdyn.data.tokens import BYTES, chunks, encode, load_tokenizer
from repdyn.data.windows import CollateMasked, Windows, batches, collate_causal, probe_sequences
from repdyn.words import CLASSES, NO_WORD, Lexicon, TokenWords, words_of_bytes, words_of_tokens

if TYPE_CHECKING:
    from repdyn.probe import Probe

# The customary split of enwik8, 90, 5 and 5 million bytes in the order of the text.
_TRAIN_PERCENT, _VALIDATION_PERCENT = 90, 5


@dataclass(frozen=True)
class _Text:
    """What is ready once the text has been read."""

    corpus: Corpus
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    bytes_per_token: float


class TextDataModule(LightningDataModule):
    """Windows of a text for next-token or masked-token training, split 90/5/5 by bytes in the order of the text.

    A batch is a dict of int64 tensors (batch, sequence_length): input_ids, attention_mask, labels. Training windows
    are shuffled anew each epoch; validation and test windows, and their masks, are always the same.

    Args:
        source: "builtin" (the Python language reference, no download), "enwik8" (downloaded once), or the path of a
            text file or Wikipedia dump, plain, .gz, .xz or .zip.
        tokenizer: "bytes" (one token per byte), or the name or folder of any Hugging Face tokenizer.
        objective: "causal" to predict the next token (decoders), "masked" to predict masked ones (encoders).
        sequence_length: tokens in a window, [CLS] and [SEP] counted where the objective is masked.
        batch_size: windows in a batch.
        clean: reduce a Wikipedia dump to prose; plain text is never touched.
        cache_dir: where downloads, cleaned text and token ids are kept; by default $REPDYN_CACHE or ~/.cache/repdyn.
        num_workers: processes that prepare batches.
        seed: of the shuffling and the masks.
        probe_max_vectors: vectors the tracker measures per layer, in all batches together.
        probe_batch_vectors: vectors per batch of a metric.
        probe_classes: "words" for a probe that tells function from content words and frequent from rare ones, counted
            in the validation split, as metrics such as "alignment@rare" need it; "none" for one that does not.
        max_bytes: use only so many bytes from the start of the source, counted before cleaning; all by default.
        mask_probability: share of tokens to predict where the objective is masked.

    Raises:
        ValueError: an argument out of range, or a tokenizer that lacks what the objective needs.
    """

    def __init__(
        self,
        source: str = "builtin",
        tokenizer: str = BYTES,
        objective: Literal["causal", "masked"] = "causal",
        sequence_length: int = 256,
        batch_size: int = 32,
        clean: bool = True,
        cache_dir: str | None = None,
        num_workers: int = 0,
        seed: int = 0,
        probe_max_vectors: int = 16384,
        probe_batch_vectors: int = 4096,
        max_bytes: int | None = None,
        mask_probability: float = 0.15,
        probe_classes: Literal["words", "none"] = "none",
    ) -> None:
        super().__init__()
        self.source = source
        self.tokenizer_name = tokenizer
        self.objective = objective
        self.sequence_length = sequence_length
        self.batch_size = batch_size
        self.clean = clean
        self.cache_dir = cache_dir
        self.num_workers = num_workers
        self.seed = seed
        self.probe_max_vectors = probe_max_vectors
        self.probe_batch_vectors = probe_batch_vectors
        self.max_bytes = max_bytes
        self.mask_probability = mask_probability
        self.probe_classes = probe_classes
        self.tokenizer = load_tokenizer(tokenizer, for_encoder=objective == "masked")
        self._before, self._after = self._special_tokens()
        self._refuse_bad_arguments()

    @property
    def vocab_size(self) -> int:
        """Number of token ids, special tokens included; known before any text is read."""
        return len(self.tokenizer)

    @property
    def pad_token_id(self) -> int | None:
        """Id of the padding token; None for a tokenizer without one (no window is ever padded)."""
        return cast("int | None", self.tokenizer.pad_token_id)

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text behind one token, measured on the validation split; 1 for the byte vocabulary."""
        return self._text.bytes_per_token

    @property
    def description(self) -> str:
        """What the text is, for logs: name, size and hash."""
        corpus = self._text.corpus
        return f"{corpus.name}: {len(corpus.data):,} bytes of text, sha256 {corpus.sha256[:12]}"

    def prepare_data(self) -> None:
        """Download, clean and tokenize into the cache, in one process."""
        _ = self._text

    def setup(self, stage: str | None = None) -> None:
        """Read the text, from the cache where it took work."""
        _ = self._text

    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader(self._text.train, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return self._loader(self._text.validation, shuffle=False)

    def test_dataloader(self) -> DataLoader[Any]:
        return self._loader(self._text.test, shuffle=False)

    def probe(self) -> Probe:
        """The fixed tokens that the tracker measures: windows from the whole validation split."""
        from repdyn.probe import Probe

        probe = Probe.from_tokens(
            self.probe_windows(),
            special_ids=sorted(self.tokenizer.all_special_ids),
            max_vectors=self.probe_max_vectors,
            batch_vectors=self.probe_batch_vectors,
            name=f"{self._text.corpus.name}, validation split",
        )
        return probe if self.probe_classes == "none" else probe.with_words(self._probe_words(), CLASSES)

    def probe_windows(self) -> np.ndarray:
        """Validation windows spread evenly over the split.

        Returns:
            (n_sequences, sequence_length) int64 ids, 1.25 tokens for each vector to be measured, or every window
            where the split holds fewer.
        """
        return self._spread(self._windows(self._text.validation))

    def _spread(self, windows: Windows) -> np.ndarray:
        wanted = probe_sequences(self.probe_max_vectors, self.sequence_length)
        chosen = np.linspace(0, len(windows) - 1, min(wanted, len(windows))).round().astype(int)
        return np.stack([windows[index][1].numpy() for index in chosen])

    def _probe_words(self) -> TokenWords:
        """The words of the probe's tokens."""
        lexicon, piece = Lexicon(), _pieces(self._text.corpus.data)[1]
        if self.tokenizer_name == BYTES:
            words = words_of_bytes(piece, lexicon)
        else:
            # piece by piece as the ids were made, which are the same only so
            found = [words_of_tokens(text, self.tokenizer, lexicon) for text in chunks(piece.decode(errors="replace"))]
            words = np.concatenate([numbers for _, numbers in found])
            self._refuse_other_ids([token for ids, _ in found for token in ids])
        no_words = [(NO_WORD,) * len(special) for special in (self._before, self._after)]
        return TokenWords(self._spread(Windows(words, self.sequence_length, *no_words)).ravel(), lexicon)

    @cached_property
    def _text(self) -> _Text:
        corpus = load_corpus(self.source, clean=self.clean, max_bytes=self.max_bytes, cache_dir=self.cache_dir)
        pieces = _pieces(corpus.data)
        train, validation, test = (self._encode(piece) for piece in pieces)
        self._refuse_short_text(corpus, min(len(validation), len(test)))
        return _Text(corpus, train, validation, test, bytes_per_token=len(pieces[1]) / len(validation))

    def _encode(self, data: bytes) -> np.ndarray:
        if self.tokenizer_name == BYTES:
            return bytes_to_ids(data)
        return encode(data, self.tokenizer, cache_directory(self.cache_dir) / "tokens")

    def _windows(self, tokens: np.ndarray) -> Windows:
        return Windows(tokens, self.sequence_length, self._before, self._after)

    def _loader(self, tokens: np.ndarray, shuffle: bool) -> DataLoader[Any]:
        collate = collate_causal
        if self.objective == "masked":
            collate = CollateMasked(self.tokenizer, self.mask_probability, self.seed, fixed=not shuffle)
        return batches(
            self._windows(tokens),
            collate,
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            seed=self.seed,
        )

    def _special_tokens(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.objective != "masked":
            return (), ()
        needed = ("mask_token", "cls_token", "sep_token")
        if missing := [name for name in needed if getattr(self.tokenizer, name) is None]:
            raise ValueError(
                f'objective "masked" needs a tokenizer with {", ".join(needed)}; {self.tokenizer_name} lacks '
                f'{", ".join(missing)}: take an encoder\'s tokenizer, or objective "causal"'
            )
        return (cast(int, self.tokenizer.cls_token_id),), (cast(int, self.tokenizer.sep_token_id),)

    def _refuse_bad_arguments(self) -> None:
        if self.objective not in ("causal", "masked"):
            raise ValueError(f'expected objective "causal" or "masked", got "{self.objective}"')
        shortest = 2 + len(self._before) + len(self._after)
        if self.sequence_length < shortest:
            raise ValueError(
                f"expected sequence_length of at least {shortest} (two tokens of text and "
                f"{shortest - 2} special ones), got {self.sequence_length}"
            )
        if not 0 < self.mask_probability <= 1:
            raise ValueError(f"expected mask_probability in (0, 1], got {self.mask_probability}")
        if self.probe_classes not in ("words", "none"):
            raise ValueError(f'expected probe_classes "words" or "none", got "{self.probe_classes}"')

    def _refuse_other_ids(self, ids: list[int]) -> None:
        if not np.array_equal(self._text.validation, ids):
            raise ValueError(
                f"expected the token ids in the cache to be those that {self.tokenizer_name} gives now, got others, of "
                f"which no words can be told; delete {cache_directory(self.cache_dir) / 'tokens'}"
            )

    def _refuse_short_text(self, corpus: Corpus, n_tokens: int) -> None:
        window = self.sequence_length - len(self._before) - len(self._after)
        if n_tokens < window:
            percent = _VALIDATION_PERCENT
            raise ValueError(
                f"expected a text of at least {window * 100 // percent:,} tokens, so that the {percent} % kept for "
                f"validation and for testing hold a window of {window} each, got {n_tokens} tokens there from "
                f"{len(corpus.data):,} bytes ({corpus.name}); use a longer text or a smaller sequence_length"
            )


def _pieces(data: bytes) -> tuple[bytes, bytes, bytes]:
    """For training, validation and testing."""
    ends = (len(data) * _TRAIN_PERCENT // 100, len(data) * (_TRAIN_PERCENT + _VALIDATION_PERCENT) // 100)
    return data[: ends[0]], data[ends[0] : ends[1]], data[ends[1] :]
