"""Six tiny models with given weights, and the probes they are measured on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from repdyn import Probe

VOCABULARY, LENGTH = 60, 16
FIRST, LAST, MASK = 1, 2, 3
"""Ids of the special tokens; 0 is padding."""
_SIZES = {
    "vocab_size": VOCABULARY,
    "num_hidden_layers": 2,
    "hidden_size": 24,
    "intermediate_size": 40,
}


class PlainBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.norm = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, num_heads=2, batch_first=True, dropout=0.1)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed, normed, attn_mask=hidden, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Plain(nn.Module):
    """A decoder of PyTorch's own modules, which no library knows."""

    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, dim)
        self.position = nn.Embedding(LENGTH, dim)
        self.blocks = nn.ModuleList([PlainBlock(dim), PlainBlock(dim)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _llama() -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**_SIZES, num_attention_heads=2, num_key_value_heads=1))


def _gpt2() -> nn.Module:
    sizes = {
        "vocab_size": VOCABULARY,
        "n_positions": LENGTH,
        "n_embd": 24,
        "n_layer": 2,
        "n_head": 3,
    }
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=FIRST, eos_token_id=LAST))


def _bert() -> nn.Module:
    return BertForMaskedLM(
        BertConfig(**_SIZES, num_attention_heads=2, max_position_embeddings=LENGTH)
    )


def _t5() -> nn.Module:
    return T5ForConditionalGeneration(
        T5Config(vocab_size=VOCABULARY, d_model=24, d_kv=12, d_ff=40, num_layers=1, num_heads=2)
    )


def _albert() -> nn.Module:
    return AlbertForMaskedLM(
        AlbertConfig(
            **_SIZES, embedding_size=12, num_attention_heads=2, max_position_embeddings=LENGTH
        )
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": _llama,
    "gpt2": _gpt2,
    "bert": _bert,
    "t5": _t5,
    "albert": _albert,
    "plain": Plain,
}


def model_of(name: str, seed: int = 0) -> nn.Module:
    """Return a model whose weights depend on its shapes and the seed alone, not on a library's
    initialization.
    """
    model = MODELS[name]()
    rng = np.random.default_rng(seed)
    for name, weights in sorted(model.named_parameters()):
        drawn = rng.standard_normal(weights.shape)
        if weights.ndim < 2:
            drawn = 0.1 * drawn + (name.endswith("weight"))
        elif not any(
            word in name for word in ("embed", "token", "position", "shared", "wte", "wpe")
        ):
            drawn *= 1.2 / np.sqrt(max(weights.shape))
        weights.data.copy_(torch.from_numpy(drawn))
    return model.eval()


def probe_of(
    design: str, n_windows: int, n_batches: int | None = None, *, padded: bool = True
) -> Probe:
    """Return a probe of windows whose tokens are distributed as words are, with a class and topics.

    Args:
        design: name of the sampling design.
        n_windows: number of windows.
        n_batches: number of batches of 64 vectors; None for the design's own number and size.
        padded: whether the windows are of several lengths.
    """
    rng = np.random.default_rng(1)
    words = np.minimum(rng.zipf(1.3, (n_windows, LENGTH)) + MASK, VOCABULARY - 1)
    lengths = rng.integers(LENGTH // 2 if padded else LENGTH, LENGTH + 1, n_windows)
    words[:, 0], words[np.arange(n_windows), lengths - 1] = FIRST, LAST
    mask = np.arange(LENGTH) < lengths[:, None]
    sizes = {} if n_batches is None else {"max_vectors": 64 * n_batches, "batch_vectors": 64}
    probe = Probe.from_tokens(
        words * mask,
        mask,
        design=design,
        special_ids=(FIRST, LAST, MASK),
        mask_id=MASK,
        bytes_per_token=4.0,
        **sizes,
    )
    probe = probe.with_classes({"rare": probe.tokens > 12})
    return probe.with_topics(torch.where(probe.tokens > MASK, probe.tokens % 3, -1))


PROBES: dict[str, dict[str, int]] = {
    "independent": {"n_windows": 60, "n_batches": 3},
    "dense": {"n_windows": 20, "n_batches": 2},
    "paper": {"n_windows": 24},
}
"""Arguments of :func:`probe_of` by design."""
