"""Two ways in which small GPTs are commonly trained, written anew: a script's own loop, and a trainer with callbacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader, Dataset, RandomSampler

VOCABULARY, CONTEXT, WIDTH = 50, 16, 32


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (2, -1)).transpose(1, 2) for part in self.c_attn(x).split(WIDTH, dim=2))
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.dropout(self.c_proj(attended))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), SelfAttention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A decoder with tied embeddings, whose forward returns ``(logits, loss)``; without targets, the last logits alone."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "wpe": nn.Embedding(CONTEXT, WIDTH),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList([Block() for _ in range(3)]),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        positions = torch.arange(idx.shape[1], device=idx.device)
        x = self.transformer["drop"](self.transformer["wte"](idx) + self.transformer["wpe"](positions))
        for block in self.transformer["h"]:
            x = block(x)
        x = self.transformer["ln_f"](x)
        if targets is None:
            return self.lm_head(x[:, [-1]]), None
        logits = self.lm_head(x)
        return logits, cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def run_script(model: GPT, data: Path, on_step: Callable[[Tensor], None], *, max_iters: int = 4) -> list[float]:
    """Train as a script does at its top level: a memory map, bfloat16 autocast, accumulated and clipped gradients."""

    def get_batch() -> tuple[Tensor, Tensor]:
        tokens = np.memmap(data, dtype=np.uint16, mode="r")
        starts = torch.randint(len(tokens) - CONTEXT, (4,))
        x = torch.stack([torch.from_numpy(tokens[i : i + CONTEXT].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + CONTEXT].astype(np.int64)) for i in starts])
        return x, y

    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    losses, iter_num = [], 0
    x, y = get_batch()
    while iter_num < max_iters:
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                _, loss = model(x, y)
                loss = loss / 2
            x, y = get_batch()
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(2 * loss.item())
        on_step(loss * 2)
        iter_num += 1
    return losses


class Windows(Dataset):
    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens) - CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        chunk = self.tokens[index : index + CONTEXT + 1]
        return chunk[:-1], chunk[1:]


class CallbackTrainer:
    """A trainer that owns its loop and calls back at the end of each batch, with its state in attributes."""

    def __init__(self, model: GPT, dataset: Windows, *, max_iters: int = 4) -> None:
        self.config = SimpleNamespace(max_iters=max_iters, batch_size=4, learning_rate=1e-3, grad_norm_clip=1.0)
        self.model, self.dataset = model, dataset
        self.callbacks: dict[str, list[Callable[[CallbackTrainer], None]]] = defaultdict(list)
        self.iter_num = 0
        self.losses: list[float] = []

    def add_callback(self, event: str, callback: Callable[[CallbackTrainer], None]) -> None:
        self.callbacks[event].append(callback)

    def run(self) -> None:
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.config.learning_rate)
        sampler = RandomSampler(self.dataset, replacement=True, num_samples=10_000)
        batches = iter(DataLoader(self.dataset, sampler=sampler, batch_size=self.config.batch_size))
        self.model.train()
        while self.iter_num < self.config.max_iters:
            x, y = next(batches)
            _, self.loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
            optimizer.step()
            self.losses.append(self.loss.item())
            for callback in self.callbacks["on_batch_end"]:
                callback(self)
            self.iter_num += 1
