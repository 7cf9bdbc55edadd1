"""A loop as nanoGPT has it, written anew: tracked by the documented lines, and not changed in a
bit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from repdyn import Probe, Tracker, measure, open_store

VOCABULARY, CONTEXT, WIDTH = 50, 16, 32
TOKENS = torch.randint(0, VOCABULARY, (4000,), generator=torch.Generator().manual_seed(0))
PROBE = Probe.from_tokens(
    TOKENS[:2048].unflatten(0, (-1, CONTEXT)), max_vectors=512, batch_vectors=256
)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(2, (2, -1)).transpose(1, 2)
            for part in self.c_attn(x).split(WIDTH, dim=2)
        )
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.dropout(self.c_proj(attended))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = SelfAttention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        widen = nn.Linear(WIDTH, 4 * WIDTH)
        narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(*[widen, nn.GELU(), narrow, nn.Dropout(0.1)])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A decoder with tied embeddings, whose forward returns ``(logits, loss)``; without targets,
    the last logits alone.
    """

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
        x = self.transformer["drop"](
            self.transformer["wte"](idx) + self.transformer["wpe"](positions)
        )
        for block in self.transformer["h"]:
            x = block(x)
        x = self.transformer["ln_f"](x)
        if targets is None:
            return self.lm_head(x[:, [-1]]), None
        logits = self.lm_head(x)
        return logits, cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def run_script(
    model: GPT, data: Path, on_step: Callable[[Tensor], None], *, max_iters: int = 4
) -> list[float]:
    """Train as a script does at its top level: a memory map, bfloat16 autocast, accumulated and
    clipped gradients.
    """

    def get_batch() -> tuple[Tensor, Tensor]:
        tokens = np.memmap(data, dtype=np.uint16, mode="r")
        starts = torch.randint(len(tokens) - CONTEXT, (4,))
        x = torch.stack(
            [torch.from_numpy(tokens[i : i + CONTEXT].astype(np.int64)) for i in starts]
        )
        y = torch.stack(
            [torch.from_numpy(tokens[i + 1 : i + 1 + CONTEXT].astype(np.int64)) for i in starts]
        )
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


def test_a_loop_is_tracked_and_not_changed(tmp_path, without_figures):
    TOKENS[2048:].numpy().astype(np.uint16).tofile(data := tmp_path / "train.bin")
    torch.manual_seed(1)
    plain = GPT()
    losses = run_script(plain, data, lambda loss: None)
    after = torch.get_rng_state()

    torch.manual_seed(1)
    model = GPT()
    tracker = Tracker(model, PROBE, schedule=2, store=tmp_path / "store", report=False).start()
    assert run_script(model, data, lambda loss: tracker.step(loss=loss)) == losses
    tracker.finish()
    assert torch.equal(torch.get_rng_state(), after)
    assert model.training
    for (name, weight), same in zip(
        model.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        assert torch.equal(weight, same), name

    frame = open_store(tmp_path / "store").to_pandas()
    frame = frame[frame["layer"].notna()]
    assert sorted(frame["step"].unique().tolist()) == [0, 2, 4]
    assert set(frame["layer"].astype(int)) == {0, 1, 2, 3}
    assert set(frame["causal"]) == {True}
    assert set(frame["dtype"]) == {"float32"}
    offline = {(row.layer, row.metric, row.subset): row.value for row in measure(model, PROBE).rows}
    last = frame[(frame["step"] == 4) & frame["value"].notna()]
    assert len(last) >= 9
    for row in last.itertuples():
        assert row.value == offline[row.layer, row.metric, row.subset]
