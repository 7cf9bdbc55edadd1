"""Models that are wrapped, compiled, adapted, quantised, frozen: measured as what they are, under
their own names.
"""

from __future__ import annotations

import contextlib
import types

import pytest
import torch
import torch.distributed as dist
from internals import checkpoint_wrapper
from shrunk import VOCABULARY
from small import HandWritten, random_tokens
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel, PreTrainedModel
from wrapped_models import last_states, values

from repdyn import Probe, measure
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare
from repdyn.capture.wrappers import unwrapped


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_compiled(llama, probe, backend):
    llama.model.layers = llama.model.layers[:1]  # each takes seconds to compile
    expected = values(llama, probe)
    compiled = torch.compile(llama, backend=backend)
    assert values(compiled, probe) == expected
    compiled(input_ids=probe.tokens[None, :12])
    assert values(compiled, probe) == expected
    assert values(compiled, probe, "model.layers.*") == expected
    if (
        backend == "eager"
    ):  # in place, which is the same with any backend, and inductor takes ten seconds for it
        llama.compile(backend=backend)
        llama(input_ids=probe.tokens[None, :12])
        assert values(llama, probe) == expected


def test_parallel_wrappers(llama, probe, one_process):
    expected = values(llama, probe)
    for wrapped in (
        DataParallel(llama),
        DistributedDataParallel(llama),
        torch.compile(DistributedDataParallel(llama), backend="eager"),
        DistributedDataParallel(torch.compile(llama, backend="eager")),
    ):
        assert unwrapped(wrapped) is llama
        assert values(wrapped, probe) == expected


def test_checkpoint_wrapper():
    torch.manual_seed(0)
    model = HandWritten()
    probe = Probe.from_tokens(random_tokens(10, 9), max_vectors=56)
    expected = values(model, probe)
    for i, block in enumerate(model.blocks):
        model.blocks[i] = checkpoint_wrapper(block)
    assert values(model, probe) == expected


@pytest.mark.parametrize("version", [1, 2])
def test_a_forward_of_the_instance_is_kept_under_fsdp(llama, probe, one_process, version):
    """An autocast is there before the model is sharded (huggingface/accelerate,
    src/accelerate/accelerator.py).
    """
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard

    llama.forward = types.MethodType(
        torch.autocast("cpu", torch.bfloat16)(type(llama).forward), llama
    )
    forward = vars(llama)["forward"]
    if version == 1:
        sharded = FullyShardedDataParallel(
            llama,
            sharding_strategy=ShardingStrategy.NO_SHARD,
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
    else:
        fully_shard(llama, mesh=dist.init_device_mesh("cpu", (1,)))
        sharded = llama
    dtypes = []

    def note_dtype(module, args, output):
        dtypes.append(output.dtype)

    llama.model.layers[0].mlp.register_forward_hook(note_dtype)
    assert measure(sharded, probe, ["anisotropy"]).rows
    assert vars(llama)["forward"] is forward
    sharded(input_ids=probe.tokens[None, :12])
    assert dtypes[-1] == torch.bfloat16

    def failing(model, batch):
        raise ZeroDivisionError

    with pytest.raises(ValueError, match="ZeroDivisionError"):
        measure(sharded, probe, forward=failing)
    assert vars(llama)["forward"] is forward


class Scaling(LlamaForCausalLM):
    """A forward pass of the user's own."""

    def forward(self, input_ids, attention_mask=None, logits_to_keep=0):
        embedded = 100 * self.model.embed_tokens(input_ids)
        return super().forward(
            inputs_embeds=embedded,
            attention_mask=attention_mask,
            logits_to_keep=logits_to_keep,
            use_cache=False,
        )


class Prefixed(PreTrainedModel):
    """A base model inside, which ``base_model_prefix`` names."""

    config_class = LlamaConfig
    base_model_prefix = "inner"
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.inner = LlamaModel(config)
        self.post_init()

    def forward(self, input_ids, attention_mask=None):
        return self.inner(
            inputs_embeds=100 * self.inner.embed_tokens(input_ids), attention_mask=attention_mask
        )


def by_a_hook(llama):
    llama.register_forward_pre_hook(
        lambda module, args, kwargs: (args, scaled(llama, kwargs)), with_kwargs=True
    )


def by_the_instance(llama):
    inner = llama.forward
    llama.forward = lambda input_ids, **rest: inner(
        **scaled(llama, {"input_ids": input_ids} | rest)
    )


def scaled(llama, kwargs):
    embedded = 100 * llama.get_input_embeddings()(kwargs["input_ids"])
    return {name: value for name, value in kwargs.items() if name != "input_ids"} | {
        "inputs_embeds": embedded
    }


def own_class_of(model_class):
    def make(llama):
        model = model_class(llama.config).eval()
        model.base_model.load_state_dict(llama.model.state_dict())
        return model

    return make


@pytest.mark.parametrize(
    "change", [own_class_of(Scaling), own_class_of(Prefixed), by_a_hook, by_the_instance]
)
def test_a_forward_of_the_users_own_is_run(llama, probe, change):
    plain = capture(prepare(llama, probe), probe, ["all"]).layers[0].states
    heads = []

    def note_length(module, args, output):
        heads.append(output.shape[1])

    model = change(llama) or llama
    if hasattr(model, "lm_head"):
        model.lm_head.register_forward_hook(note_length)
    assert torch.equal(capture(prepare(model, probe), probe, ["all"]).layers[0].states, 100 * plain)
    assert (
        set(heads) <= {1} or change is by_the_instance
    )  # whose forward does not say that it takes logits_to_keep


@pytest.mark.parametrize("hugging_face", [True, False], ids=["hugging face", "hand-written"])
def test_the_autocast_of_accelerate_is_left_out(llama, probe, hugging_face):
    model = llama if hugging_face else Padded()
    plain = last_states(model, probe)
    model._original_forward = model.forward  # as accelerate prepares a model for mixed precision
    model.forward = types.MethodType(
        torch.autocast("cpu", torch.bfloat16)(type(model).forward), model
    )
    forward = vars(model)["forward"]
    if hugging_face:
        llama.lm_head.register_forward_pre_hook(
            lambda *_: pytest.fail("the head's logits are not needed")
        )
    assert torch.equal(last_states(model, probe), plain)
    assert vars(model)["forward"] is forward


def test_gradient_checkpointing(llama, probe):
    expected = values(llama, probe)
    llama.gradient_checkpointing_enable()
    llama.train()
    assert values(llama, probe) == expected
    assert llama.training
    assert llama.is_gradient_checkpointing
    llama(input_ids=probe.tokens[None, :12]).logits.sum().backward()


def test_a_graph_that_is_waiting_for_its_backward_pass(llama, probe):
    loss = llama(input_ids=probe.tokens[None, :12]).logits.square().mean()
    values(llama, probe)
    loss.backward()
    assert all(p.grad is not None for p in llama.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_precisions(llama, probe, dtype):
    rows = measure(llama.to(dtype), probe, ["anisotropy"]).rows
    assert {row.dtype for row in rows} == {str(dtype).removeprefix("torch.")}
    assert {row.causal for row in rows} == {True}


class Padded(nn.Module):
    """nn.TransformerEncoder as its documentation uses it: nested tensors and the fast path on."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)

    def forward(self, tokens, attention_mask):
        return self.encoder(self.embedding(tokens), src_key_padding_mask=attention_mask == 0)


@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "bf16 autocast"])
def test_transformer_encoder_with_padding_on_its_fast_path(probe, autocast):
    torch.manual_seed(0)
    model = Padded().eval()
    batch = next(probe.batches(100))
    chosen = batch.positions[probe.sample("all").ravel()]
    with torch.no_grad():
        expected = model(batch.input_ids, batch.attention_mask).flatten(0, 1)[chosen]
    with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
        states = last_states(model, probe)
        assert {row[3] for row in values(model, probe)} == {False}
    assert states.dtype == torch.float32
    torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-5)


class Translator(nn.Module):
    """nn.Transformer in a model of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.transformer = nn.Transformer(
            d_model=16,
            nhead=2,
            num_encoder_layers=2,
            num_decoder_layers=2,
            dim_feedforward=32,
            batch_first=True,
        )

    def forward(self, tokens):
        x = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.transformer(x, x, tgt_mask=mask, tgt_is_causal=True)


def test_two_stacks_of_ones_own():
    torch.manual_seed(0)
    model = Translator()
    probe = Probe.from_tokens(random_tokens(10, 9, VOCABULARY), max_vectors=56)
    layers = {"encoder": "transformer.encoder.layers.*", "decoder": "transformer.decoder.layers.*"}
    rows = measure(model, probe, ["anisotropy"], layers).rows
    told = {(row.stack, row.layer, row.depth, row.causal) for row in rows}
    encoder = {("encoder", i, i / 2, False) for i in range(3)}
    assert told == encoder | {("decoder", i, i / 2, True) for i in range(3)}
    assert {row.layers for row in rows} == {
        '{"decoder": ["transformer.decoder.layers.*"], "encoder": ["transformer.encoder.layers.*"]}'
    }
    # neither is larger than the other, and both are found
    found = measure(model, probe, ["anisotropy"]).rows
    assert {(row.stack, row.layer): row.value for row in found} == {
        (row.stack, row.layer): row.value for row in rows
    }


class WithTarget(Translator):
    def forward(self, tokens, tgt):
        return self.transformer(self.embedding(tokens), self.embedding(tgt))


def test_required_targets_are_the_tokens():
    """As in Lightning's own example, whose forward cannot be called with one argument."""
    torch.manual_seed(0)
    probe = Probe.from_tokens(random_tokens(10, 9, VOCABULARY), max_vectors=56)
    model = WithTarget()
    expected = measure(model, probe, forward=lambda m, batch: m(batch.input_ids, batch.input_ids))
    found = measure(model, probe)
    assert [row.value for row in found.rows if row.metric == "anisotropy"] == [
        row.value for row in expected.rows if row.metric == "anisotropy"
    ]
