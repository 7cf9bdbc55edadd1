from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from repdyn.data.tokens import byte_tokenizer
from repdyn.data.windows import CollateMasked, Windows

CLS, SEP, MASK = 257, 258, 259
RANDOM_BYTES = np.random.default_rng(0).integers(0, 256, size=200 * 126).astype(np.uint8)


@pytest.fixture
def windows() -> Windows:
    return Windows(RANDOM_BYTES, 128, before=(CLS,), after=(SEP,))


def collate(fixed: bool, seed: int = 0) -> CollateMasked:
    return CollateMasked(byte_tokenizer(for_encoder=True), probability=0.15, seed=seed, fixed=fixed)


@pytest.mark.parametrize("fixed", [False, True], ids=["training", "validation"])
def test_masks_have_the_shares_of_bert(windows: Windows, fixed: bool):
    examples = [windows[index] for index in range(len(windows))]
    batch = collate(fixed)(examples)
    original = torch.stack([ids for _, ids in examples])
    chosen = batch["labels"] != -100
    assert torch.equal(batch["labels"][chosen], original[chosen])
    assert torch.equal(batch["input_ids"][~chosen], original[~chosen])
    assert not chosen[:, [0, -1]].any()

    n_text = original[:, 1:-1].numel()
    n_chosen = int(chosen.sum())
    masked = batch["input_ids"][chosen] == MASK
    is_unchanged = batch["input_ids"][chosen] == original[chosen]
    # four standard deviations of a share of n draws; a random replacement is the original once in
    # 260
    for count, n, share in (
        (n_chosen, n_text, 0.15),
        (masked.sum(), n_chosen, 0.8),
        (is_unchanged.sum(), n_chosen, 0.1),
    ):
        assert abs(int(count) / n - share) < 4 * (share * (1 - share) / n) ** 0.5 + 0.1 / 260


def test_fixed_masks_depend_on_the_window_alone(windows: Windows):
    collator = collate(fixed=True)
    whole = collator([windows[index] for index in range(6)])
    again = collator([windows[index] for index in (5, 2)])
    for key in ("input_ids", "labels"):
        assert torch.equal(whole[key][[5, 2]], again[key])
    masks = whole["labels"] != -100
    assert not torch.equal(masks[0], masks[1])
    other = collate(fixed=True, seed=1000)([windows[index] for index in range(6)])
    assert not torch.equal(other["labels"], whole["labels"])


def test_workers_draw_new_masks_each_epoch_and_repeat_from_run_to_run(windows: Windows):
    def two_epochs() -> list[torch.Tensor]:
        loader = DataLoader(
            windows,
            batch_size=50,
            collate_fn=collate(fixed=False),
            num_workers=1,
            generator=torch.Generator().manual_seed(0),
        )
        return [next(iter(loader))["labels"] for _ in range(2)]

    first = two_epochs()
    second = two_epochs()
    assert not torch.equal(first[0], first[1])
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_masking_leaves_the_global_random_state_alone(windows: Windows):
    before = torch.get_rng_state()
    for fixed in (True, False):
        collate(fixed)([windows[0]])
    assert torch.equal(torch.get_rng_state(), before)
