"""The output head: what it computes is the model's own prediction, and where there is none, the
reason is given.
"""

from __future__ import annotations

import pytest
import torch
from pretend_cuda import PretendCuda
from small import HandWritten
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    T5Config,
    T5ForConditionalGeneration,
)

from repdyn.capture import output_head
from repdyn.capture.calls import as_batch
from repdyn.capture.output_head import OutputHead, find_output_head
from repdyn.capture.trial import prepare
from repdyn.models import build_model

SIZES = {
    "vocab_size": 70,
    "hidden_size": 16,
    "n_layers": 2,
    "n_heads": 2,
    "context_length": 32,
    "pad_token_id": 0,
}
IDS = torch.arange(1, 15).reshape(2, 7)


def of_family(family):
    torch.manual_seed(0)
    return build_model(family, **SIZES)


def of_library(family, **settings):
    torch.manual_seed(0)
    sizes = {"vocab_size": 70, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    config = AutoConfig.for_model(
        family, **sizes, num_key_value_heads=2, intermediate_size=32, head_dim=8, **ends, **settings
    )
    return AutoModelForCausalLM.from_config(config)


def head_and_logits(model):
    """The head of a model, its logits from the last block's output, and the model's own."""
    prepared = prepare(model, as_batch(IDS))
    outputs = []
    head = find_output_head(prepared, IDS)
    assert isinstance(head, OutputHead), head
    model.eval()
    block = prepared.blocks[-1].module

    def keep(_module, _args, output):
        outputs.append(output)

    hook = block.register_forward_hook(keep)
    with torch.no_grad():
        logits = model(IDS.flip(1)).logits
    hook.remove()
    states = outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0]
    return head, head(states.flatten(0, 1)), logits.flatten(0, 1)


@pytest.mark.parametrize(
    "family", ["gpt2", "gpt_neox", "bloom", "llama", "bert", "roberta", "modernbert"]
)
def test_the_head_gives_the_model_s_own_logits(family):
    _, found, logits = head_and_logits(of_family(family))
    assert torch.allclose(found, logits, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "settings", "factor", "cap"),
    [
        ("olmo2", {}, 1.0, None),
        ("cohere", {}, 0.0625, None),
        ("granite", {"logits_scaling": 8.0}, 0.125, None),
        ("gemma2", {"final_logit_softcapping": 0.05}, 1.0, 0.05),
    ],
)
def test_scaled_and_capped_logits(family, settings, factor, cap):
    head, found, logits = head_and_logits(of_library(family, **settings))
    assert torch.allclose(found, logits, atol=1e-5)
    assert (pytest.approx(factor), cap) == tuple(head.scale)


class Mixing(BertForMaskedLM):
    """Adds to each position's logits those of the first; as no module takes what the last block
    returns in huggingface/transformers, src/transformers/models/gemma3n/modeling_gemma3n.py.
    """

    def forward(self, *args, **settings):
        output = super().forward(*args, **settings)
        output.logits = output.logits + output.logits[:, :1]
        return output


class CumulativeNorm(nn.Module):
    """Gives each position something else than alone; as the streams that are brought together in
    huggingface/transformers, src/transformers/models/deepseek_v4/modeling_deepseek_v4.py.
    """

    def forward(self, states):
        return states.cumsum(1)


def test_reasons():
    config = BertConfig(
        vocab_size=70,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
    )
    assert find_output_head(prepare(BertModel(config), as_batch(IDS)), IDS) == output_head.NO_LOGITS
    assert find_output_head(prepare(Mixing(config), as_batch(IDS)), IDS) == output_head.NOT_A_CHAIN
    decoder = of_family("gpt2")
    decoder.transformer.ln_f = CumulativeNorm()
    assert find_output_head(prepare(decoder, as_batch(IDS)), IDS) == output_head.NOT_REPRODUCED
    broken = of_family("gpt2")
    nn.init.constant_(broken.transformer.ln_f.weight, torch.nan)
    assert find_output_head(prepare(broken, as_batch(IDS)), IDS) == output_head.NOT_FINITE
    t5 = T5Config(
        vocab_size=70,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_heads=2,
        num_layers=2,
        decoder_start_token_id=0,
    )
    assert (
        find_output_head(prepare(T5ForConditionalGeneration(t5), as_batch(IDS)), IDS)
        == output_head.SEVERAL_STACKS
    )


class WithLoss(HandWritten):
    """(karpathy/nanoGPT, model.py)"""

    def forward(self, tokens):
        return super().forward(tokens), None


class InADictionary(HandWritten):
    """(facebookresearch/esm, esm/model/esm2.py)"""

    def forward(self, tokens):
        return {"representations": {}, "logits": super().forward(tokens)}


@pytest.mark.parametrize("kind", [HandWritten, WithLoss, InADictionary])
def test_logits_of_a_model_of_ones_own(kind):
    torch.manual_seed(0)
    model = kind().eval()
    head = find_output_head(prepare(model, as_batch(IDS)), IDS)
    assert isinstance(head, OutputHead), head
    found = [next(module.parameters()).data_ptr() for module in head.modules]
    assert found == [model.norm.weight.data_ptr(), model.head.weight.data_ptr()]


@pytest.mark.parametrize("dim", [16, 50])
def test_states_are_no_logits(dim):
    """A model without a head puts out states, of as many coordinates as it has tokens in the second
    case.
    """
    body = HandWritten(dim=dim, vocabulary=50)
    body.head = nn.Identity()
    assert find_output_head(prepare(body, as_batch(IDS)), IDS) == output_head.NO_LOGITS


def test_on_a_device():
    model = of_family("gpt_neox")
    states = torch.randn(5, 16)
    expected = find_output_head(prepare(model, as_batch(IDS)), IDS)(states)
    with PretendCuda():
        head = find_output_head(prepare(model.to("cuda"), as_batch(IDS)), IDS)
        found = head(states).cpu()
    assert torch.equal(found, expected)
