"""The input embedding: whoever is given the token ids."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from small import HandWritten, random_tokens
from torch import nn
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModel

from repdyn import Probe
from repdyn.capture.capture import capture
from repdyn.capture.token_states import NONE_FOUND, NOT_A_TABLE, NOT_IN_MEMORY, EmbeddingSearch
from repdyn.capture.trial import prepare

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def of(family, **settings):
    return lambda: AutoModel.from_config(AutoConfig.for_model(family, **SIZES, **settings))


def table_of(model, probe, **settings):
    return capture(
        prepare(model, probe), probe, ["all"], captures={"embeddings"}, **settings
    ).embeddings


class PositionsFirst(HandWritten):
    """Asks another table first, and a second one of the tokens after theirs
    (huggingface/transformers, src/transformers/models/gemma3n/modeling_gemma3n.py).
    """

    def __init__(self) -> None:
        super().__init__()
        self.segment = nn.Embedding(2, 16)
        self.second = nn.Embedding(50, 16)

    def forward(self, tokens):
        x = self.position(torch.arange(tokens.shape[1])) + self.segment(torch.zeros_like(tokens))
        x = x + self.token(tokens) + self.second(tokens)
        for block in self.blocks:
            x = block(x)
        return x


class Scaled(nn.Embedding):
    """(huggingface/transformers, src/transformers/models/gemma3/modeling_gemma3.py)"""

    def forward(self, input):
        return super().forward(input) * 4.0


def scaled():
    model = HandWritten()
    model.token = Scaled(50, 16)
    return model


MODELS = {
    "positions first": (PositionsFirst, "token"),
    "scaled": (scaled, "token"),
    "gpt2": (of("gpt2"), "wte"),
    "bart": (of("bart"), "encoder.embed_tokens"),
    # gives its tokens the other way round
    "xlnet": (of("xlnet", d_head=8), "word_embedding"),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_table_that_is_given_the_tokens(name, small_probe):
    make, embedding = MODELS[name]
    model = make()
    table = table_of(model, small_probe)
    assert table.shape == (50, 16)
    assert table.data_ptr() == model.get_submodule(embedding).weight.data_ptr()
    assert not table.requires_grad
    assert all(not m._forward_pre_hooks and not m._forward_hooks for m in model.modules())


class Functional(HandWritten):
    """(NVIDIA/Megatron-LM, megatron/core/tensor_parallel/layers.py)"""

    def forward(self, tokens):
        x = nn.functional.embedding(tokens, self.token.weight) + self.position(
            torch.arange(tokens.shape[1])
        )
        for block in self.blocks:
            x = block(x)
        return x


class Integers(nn.Embedding):
    """Stores its rows as bytes (bitsandbytes-foundation/bitsandbytes,
    bitsandbytes/nn/modules.py).
    """

    def __init__(self) -> None:
        super().__init__(50, 16)
        self.weight = nn.Parameter((100 * self.weight.detach()).to(torch.int8), requires_grad=False)

    def forward(self, input):
        return nn.functional.embedding(input, self.weight.float() / 100)


class Elsewhere(nn.Embedding):
    """Fetches its rows when they are needed, from memory or disk (huggingface/accelerate,
    src/accelerate/hooks.py).
    """

    def __init__(self) -> None:
        super().__init__(50, 16)
        self.rows = self.weight.detach()
        self.weight = nn.Parameter(self.weight.to("meta"))

    def forward(self, input):
        return nn.functional.embedding(input, self.rows)


def with_embedding(embedding):
    model = HandWritten()
    model.token = embedding
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Functional, NONE_FOUND),
        (lambda: with_embedding(Integers()), NOT_A_TABLE),
        (lambda: with_embedding(Elsewhere()), NOT_IN_MEMORY),
    ],
    ids=["functional", "integers", "elsewhere"],
)
def test_where_there_is_none_a_reason_is_given(make, reason, small_probe):
    assert table_of(make(), small_probe) == reason


@pytest.mark.parametrize("pieces", ["flat", "freed"])
def test_pieces_of_fsdp1_are_no_table(pieces):
    """As several ranks leave them: a flat piece of the rows, or rows whose memory was given
    back.
    """
    search = EmbeddingSearch(model := HandWritten())
    tokens = random_tokens(2, 5)
    with search.during(next(Probe.from_tokens(tokens, max_vectors=8).batches(2))):
        model(tokens)
    weight = model.token.weight
    if pieces == "flat":
        model.token.weight = nn.Parameter(weight.detach().flatten()[:100])
    else:
        weight.untyped_storage().resize_(0)
    assert search.table() == NOT_IN_MEMORY


def test_shards_of_fsdp2_are_brought_together(one_process, small_probe):
    torch.manual_seed(0)
    model = HandWritten()
    expected = model.token.weight.detach().clone()
    for block in model.blocks:
        fully_shard(block, mesh=dist.init_device_mesh("cpu", (1,)))
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    table = table_of(model, small_probe)
    assert type(table) is torch.Tensor
    assert torch.equal(table, expected)
