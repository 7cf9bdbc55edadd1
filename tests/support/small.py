"""Models and tokens small enough for every test."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A pre-norm transformer block as one writes it by hand."""

    def __init__(self, dim: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, num_heads=2, batch_first=True, dropout=0.1)
        layers = [nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)]
        self.feed_forward = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        mask = (
            torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            if self.causal
            else None
        )
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        return x + self.feed_forward(x)


class HandWritten(nn.Module):
    """A small transformer that knows nothing of Hugging Face."""

    def __init__(
        self, n_layers: int = 3, dim: int = 16, vocabulary: int = 50, causal: bool = True
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, dim)
        self.position = nn.Embedding(64, dim)
        self.blocks = nn.ModuleList(Block(dim, causal) for _ in range(n_layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def random_tokens(n_sequences: int, length: int, vocabulary: int = 50, seed: int = 0) -> Tensor:
    return torch.randint(
        3, vocabulary, (n_sequences, length), generator=torch.Generator().manual_seed(seed)
    )
