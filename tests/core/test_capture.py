"""Capture: each layer's states at the sampled tokens, and errors that say what to do."""

from __future__ import annotations

import re

import pytest
import torch
from small import Block, HandWritten, random_tokens
from torch import nn

from repdyn import Probe, layer_states, measure
from repdyn.capture.capture import capture, causality
from repdyn.capture.model import locate
from repdyn.capture.trial import prepare


def stream_of(model, tokens):
    """The states that enter the first block and leave each."""
    x = model.token(tokens) + model.position(torch.arange(tokens.shape[1]))
    stream = [x]
    for block in model.blocks:
        stream.append(x := block(x))
    return stream


@pytest.mark.parametrize("tokens_per_forward", [12, 36, 10_000])
def test_layers_are_the_stream_at_the_sampled_tokens(tokens_per_forward, hand_written, small_probe):
    states = capture(
        prepare(hand_written, small_probe),
        small_probe,
        ["all"],
        tokens_per_forward=tokens_per_forward,
    )
    assert hand_written.training
    sampled = small_probe.sample("all").ravel()
    with torch.no_grad():
        expected = stream_of(hand_written.eval(), small_probe.tokens.view(24, 12))
    for layer, whole in zip(states.layers, expected, strict=True):
        torch.testing.assert_close(layer.states[states.rows[sampled]], whole.flatten(0, 1)[sampled])


def test_padding_changes_nothing(hand_written):
    """States of padded sequences are those of the sequences alone."""
    lengths = torch.tensor([9, 4, 7, 9, 3, 8])
    mask = torch.arange(9) < lengths[:, None]
    ids = random_tokens(6, 9)

    class Masked(HandWritten):
        def forward(self, input_ids, attention_mask):
            return super().forward(input_ids)

    model = Masked()
    model.load_state_dict(hand_written.state_dict())
    probe = Probe.from_tokens(ids, mask, max_vectors=30)
    states = capture(prepare(model, probe), probe, ["all"])
    sampled = probe.sample("all").ravel()
    with torch.no_grad():
        whole = stream_of(model.eval(), ids)[-1][mask]
    torch.testing.assert_close(states.layers[-1].states[states.rows[sampled]], whole[sampled])
    with pytest.raises(ValueError, match="attention_mask"):
        capture(prepare(hand_written, probe), probe, ["all"])


class OwnMask(nn.Module):
    """An encoder; below are forwards with a name and a meaning of their own for its mask."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def run(self, tokens, is_padding=None, attends_to=None):
        return self.encoder(self.embedding(tokens), attends_to, src_key_padding_mask=is_padding)


class TrueAtTokens(OwnMask):
    """As in allenai/allennlp, allennlp/modules/token_embedders/pretrained_transformer_embedder.py,
    and in mosaicml/examples, llm/src/mosaic_gpt.py, which calls it key_padding_mask.
    """

    def forward(self, tokens, mask):
        return self.run(tokens, ~mask)


class TrueAtPadding(OwnMask):
    """As in krasserm/perceiver-io, perceiver/model/text/mlm/backend.py."""

    def forward(self, tokens, pad_mask=None):
        return self.run(tokens, pad_mask)


class OneAtTokens(OwnMask):
    """As in abhimishra91/transformers-tutorials, transformers_multi_label_classification.ipynb, and
    in deepset-ai/FARM, farm/modeling/language_model.py, which calls it padding_mask; the
    notebook requires a segment for each token as well.
    """

    def forward(self, tokens, mask, token_type_ids):
        assert not token_type_ids.any()
        return self.run(tokens, (1 - mask).bool())


class Optional(OwnMask):
    """Under the name of ``nn.Transformer`` (pytorch/pytorch, torch/nn/modules/transformer.py)."""

    def forward(self, tokens, src_key_padding_mask=None):
        return self.run(tokens, src_key_padding_mask)


class OfPairs(OwnMask):
    """Its mask is of what each position sees."""

    def forward(self, tokens, mask):
        return self.run(tokens, attends_to=mask)


@pytest.mark.parametrize("kind", [TrueAtTokens, TrueAtPadding, OneAtTokens, Optional])
def test_a_mask_of_another_name_is_understood(kind):
    """Catches one that is passed the other way round, so that tokens see the padding alone."""
    mask = torch.arange(20) < torch.tensor([20, 9, 14] * 8)[:, None]
    probe = Probe.from_tokens(random_tokens(24, 20), mask, max_vectors=128)
    model = kind()
    written = measure(
        model,
        probe,
        ["anisotropy"],
        forward=lambda model, batch: model.run(batch.input_ids, batch.attention_mask == 0),
    )
    guessed = measure(model, probe, ["anisotropy"])
    assert guessed.to_pandas()["value"].tolist() == written.to_pandas()["value"].tolist()


def test_a_mask_of_pairs_is_not_guessed():
    probe = Probe.from_tokens(random_tokens(24, 20), max_vectors=128)
    with pytest.raises(ValueError, match=re.escape("mask=my_mask(batch)")):
        prepare(OfPairs(), probe)


class InDictionary(nn.Module):
    """Takes and returns all that it passes on in one value, as blocks of a pipeline do
    (EleutherAI/gpt-neox, megatron/model/transformer.py).
    """

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, passed):
        return {"mask": None, 1: self.block(passed[1])}


def test_the_states_are_what_the_next_block_takes(hand_written, small_probe):
    class Unpacking(HandWritten):
        def forward(self, tokens):
            passed = {1: self.token(tokens) + self.position(torch.arange(tokens.shape[1]))}
            for block in self.blocks:
                passed = block(passed)
            return self.head(self.norm(passed[1]))

    model = Unpacking()
    model.load_state_dict(hand_written.state_dict())
    model.blocks = nn.ModuleList(InDictionary(block) for block in model.blocks)
    layers, expected = (
        capture(prepare(each, small_probe), small_probe, ["all"]).layers
        for each in (model, hand_written)
    )
    for one, other in zip(layers, expected, strict=True):
        assert torch.equal(one.states, other.states)


def test_blocks_that_pass_no_states_on_are_an_error_with_what_to_write(hand_written, small_probe):
    class Nothing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(16, 16)

        def forward(self, x):
            return None

    class OfHeads(HandWritten):
        def forward(self, tokens):
            x = self.token(tokens)
            return x + sum(block(x) for block in self.blocks)

    with pytest.raises(RuntimeError, match="layers="):
        measure(OfHeads(), small_probe)
    hand_written.blocks[1] = Nothing()
    with pytest.raises(RuntimeError, match="layers="):
        measure(hand_written, small_probe)
    with pytest.raises(ValueError, match=r'"blocks\.\*"'):
        locate(hand_written, "layers.*")
    with pytest.raises(ValueError, match=r'layers="1\.\*"'):
        locate(nn.Sequential(nn.Embedding(5, 4), nn.ModuleList([nn.LSTM(4, 4)])))


class Patient(HandWritten):
    """Leaves its blocks early where a prediction is sure, at another one in each batch
    (huggingface/transformers,
    examples/research_projects/bert-loses-patience/pabee/modeling_pabee_albert.py).
    """

    def __init__(self):
        super().__init__(n_layers=1)

    def forward(self, tokens):
        x = self.token(tokens)
        for _ in range(2 + int(tokens[0, 0]) % 3):
            x = self.blocks[0](x)
        return x


def test_a_batch_that_goes_through_fewer_blocks_is_an_error(small_probe):
    """The rows of the layers that it lacks would hold anything."""
    with pytest.raises(RuntimeError, match="same blocks to run in the same order"):
        capture(prepare(Patient(), small_probe), small_probe, ["all"], tokens_per_forward=36)


class Convolution(nn.Module):
    """A block of maps (pytorch/vision, torchvision/models/resnet.py)."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Sequential(nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, padding=1))

    def forward(self, maps):
        return maps + self.inside(maps)


def test_maps_of_convolutions_are_refused_with_what_to_use():
    """Maps that are not square were measured, the width of an image taken for the dimension."""
    network = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Sequential(Convolution(), Convolution()))
    probe = Probe.from_inputs([torch.randn(16, 3, 12, 10)])
    with pytest.raises(
        ValueError, match=r"convolutions .* pooled features to repdyn\.torchmetrics"
    ):
        measure(network, probe)


def test_ids_beyond_the_vocabulary_are_an_error_that_says_so(hand_written):
    """An IndexError from inside says nothing, and on a GPU the process is lost."""
    probe = Probe.from_tokens(random_tokens(8, 12, vocabulary=60), max_vectors=48)
    with pytest.raises(ValueError, match="vocabulary"):
        measure(hand_written, probe)


def test_errors_of_the_model_say_how_to_call_it(hand_written, small_probe):
    class Needy(HandWritten):
        def forward(self, tokens, temperature):
            return super().forward(tokens) / temperature

    with pytest.raises(
        ValueError, match=r"forward=lambda model, batch: model\(batch.input_ids, temperature="
    ) as error:
        measure(Needy(), small_probe)
    assert isinstance(error.value.__cause__, TypeError)
    assert measure(
        Needy(), small_probe, forward=lambda model, batch: model(batch.input_ids, temperature=1.0)
    ).rows
    with pytest.raises(ValueError, match="windows of at most 64 tokens"):
        measure(hand_written, Probe.from_tokens(random_tokens(4, 80), max_vectors=48))
    # a vocabulary of 50 is no limit of the windows
    hand_written.position = nn.Embedding(8, 16)
    with pytest.raises(ValueError, match="windows of at most 8 tokens"):
        measure(hand_written, Probe.from_tokens(random_tokens(4, 80), max_vectors=48))
    with pytest.raises(ValueError, match="meta device"):
        measure(hand_written.to("meta"), small_probe)


def test_what_an_error_suggests_works_as_printed(small_probe):
    """A suggestion with a place to fill in is an error of its own."""

    class Labelled(HandWritten):
        def forward(self, tokens, labels):
            return super().forward(tokens), labels

    with pytest.raises(ValueError, match="forward=lambda") as error:
        measure(Labelled(), small_probe)
    call = re.search(r"forward=(lambda model, batch: model\(.*?\))", str(error.value))
    assert measure(Labelled(), small_probe, forward=eval(call[1])).rows

    class Twofold(HandWritten):
        def __init__(self):
            super().__init__()
            self.upper = nn.ModuleList(Block(16, causal=True) for _ in range(3))

        def forward(self, tokens):
            x = self.token(tokens)
            for block in (*self.blocks, *self.upper):
                x = block(x)
            return x

    class Paired(HandWritten):
        def forward(self, batch):
            tokens, _ = batch
            return super().forward(tokens)

    with pytest.raises(ValueError, match="not enough values to unpack") as error:
        measure(Paired(), small_probe)
    pair = re.search(r"forward=(lambda.*)", str(error.value))
    assert measure(Paired(), small_probe, forward=eval(pair[1])).rows

    class Singly(HandWritten):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = self.blocks
            del self.blocks

        def forward(self, tokens):
            return self.third(self.second(self.first(self.token(tokens))))

    with pytest.raises(ValueError, match="list of blocks") as error:
        measure(Singly(), small_probe)
    blocks = re.search(r"layers=(\[.*?\])", str(error.value))
    measured = measure(Singly(), small_probe, layers=eval(blocks[1])).to_pandas()
    assert set(measured["module"].dropna()) >= {"first", "second", "third"}

    with pytest.raises(ValueError, match="several of similar size") as error:
        measure(Twofold(), small_probe)
    stacks = re.search(r"layers=(\{.*\})", str(error.value))
    assert set(measure(Twofold(), small_probe, layers=eval(stacks[1])).to_pandas()["stack"]) == {
        "blocks",
        "upper",
    }


class OfDict(HandWritten):
    """Takes one dictionary (UKPLab/sentence-transformers,
    sentence_transformers/models/CLIPModel.py; YuriiLaba/transformer_anatomy, bert/encoder.py).
    """

    def forward(self, batch):
        return super().forward(batch["input_ids"])


class OfKeyword(HandWritten):
    """Takes tokens by their name alone."""

    def forward(self, *, tokens, temperature=1.0):
        return super().forward(tokens) / temperature


class OfAnything(HandWritten):
    """Takes anything, as an adapter around a model (huggingface/peft, src/peft/peft_model.py)."""

    def forward(self, *args, **kwargs):
        return super().forward(*args)


class OfTranslation(HandWritten):
    """Requires the number of tokens in each row, and a second sequence (facebookresearch/fairseq,
    fairseq/models/transformer/transformer_base.py).
    """

    def forward(self, src_tokens, src_lengths, prev_output_tokens):
        assert src_lengths.shape == (len(src_tokens),)
        assert (src_lengths == src_tokens.shape[1]).all()
        assert torch.equal(prev_output_tokens, src_tokens)
        return super().forward(src_tokens)


class OfPositions(HandWritten):
    """Requires the numbers of the positions (microsoft/nnscaler, examples/nlp/gpt/model.py)."""

    def forward(self, input_ids, position_ids):
        assert torch.equal(position_ids, torch.arange(input_ids.shape[1]).expand_as(input_ids))
        return super().forward(input_ids)


@pytest.mark.parametrize("kind", [OfDict, OfKeyword, OfAnything, OfTranslation, OfPositions])
def test_a_model_is_called_in_the_way_that_it_takes(kind, hand_written, small_probe):
    model = kind()
    model.load_state_dict(hand_written.state_dict())
    values = [
        [row.value for row in measure(m, small_probe, ["anisotropy"]).rows]
        for m in (model, hand_written)
    ]
    assert values[0] == values[1]


@pytest.mark.parametrize("causal", [True, False])
def test_causality(causal, small_probe):
    torch.manual_seed(0)
    assert causality(prepare(HandWritten(causal=causal), small_probe), small_probe) == {
        None: causal
    }


def test_learned_vectors_before_the_tokens_need_a_probe_of_inputs(small_probe):
    class WithMeta(HandWritten):
        def forward(self, tokens):
            x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
            x = torch.cat([self.position.weight[-2:].expand(len(x), -1, -1), x], dim=1)
            for block in self.blocks:
                x = block(x)
            return x

    with pytest.raises(RuntimeError, match=r"positions=slice\(2, None\)"):
        measure(WithMeta(), small_probe)
    probe = Probe.from_inputs([random_tokens(10, 9)], positions=slice(2, None), max_vectors=40)
    assert measure(WithMeta(), probe).rows


class WritesIntoItsInputs(HandWritten):
    """Replaces tokens, marks padding and scales what it adds, all in the tensors that it is given
    (Aritra02091998/Phi-3-vision-128k-instruct-Improvised-for-QLORA-Training,
    image_embedding_phi3_v.py, clamps the ids).
    """

    def forward(self, input_ids, attention_mask=None, shift=None):
        input_ids.add_(1).remainder_(50)
        x = self.token(input_ids)
        if attention_mask is not None:
            x = x * attention_mask.unsqueeze(-1)
            attention_mask[:, 8:] = 0
        if shift is not None:
            x = x + shift.mul_(0.5).unsqueeze(-1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@pytest.mark.parametrize("kind", ["tokens", "inputs by name", "inputs in order", "forward"])
def test_what_a_forward_writes_into_its_inputs_does_not_reach_the_next_pass(kind):
    """Each pass gave another value: the probe's own tensors went into the model."""
    ids = random_tokens(24, 12)
    model = WritesIntoItsInputs()
    inputs = [
        {"input_ids": part, "attention_mask": torch.ones_like(part), "shift": torch.ones(6, 12)}
        for part in ids.split(6)
    ]
    forward = None
    if kind == "tokens":
        probe = Probe.from_tokens(ids, max_vectors=192, batch_vectors=96)
    else:
        probe_batches = (
            inputs if kind != "inputs in order" else [(*batch.values(),) for batch in inputs]
        )
        probe = Probe.from_inputs(
            probe_batches, causal=True, vectors_per_input=8, max_vectors=192, batch_vectors=96
        )
    if kind == "forward":

        def forward(model, batch):
            return model(**batch.inputs)

    with torch.no_grad():
        expected = model.token((ids + 1) % 50)
        expected = expected if kind == "tokens" else expected + 0.5
    for _ in range(2):
        states = capture(prepare(model, probe, forward=forward), probe, ["all"])
        layer = next(iter(states))
        if kind == "tokens":
            sampled = probe.sample("all").ravel()
            found = layer.states[states.rows[sampled]]
            assert torch.equal(found, expected.flatten(0, 1)[sampled])
        else:
            rows = {tuple(row) for row in expected.flatten(0, 1).tolist()}
            assert {tuple(row) for row in layer.states.tolist()} <= rows
    assert causality(prepare(model, probe, forward=forward), probe) == {None: True}
    assert torch.equal(ids, random_tokens(24, 12))


class Drawing(HandWritten):
    """Draws in evaluation too, as the hashes of Reformer do (huggingface/transformers,
    src/transformers/models/reformer/modeling_reformer.py).
    """

    def forward(self, tokens):
        x = self.token(tokens)
        x = x + torch.randn_like(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def test_what_else_is_asked_for_does_not_change_what_a_model_draws(small_probe):
    """The pass that looks for the attention's branches drew before the one over the probe."""
    torch.manual_seed(0)
    model = Drawing()
    alone, beside = (
        [row.value for row in measure(model, small_probe, metrics).rows if row.metric == "norm"]
        for metrics in (["norm"], ["norm", "token_cosine_attention"])
    )
    assert alone == beside


def test_states_that_were_read_are_not_read_again_in_silence():
    """A second loop over them, as of a cell run twice, found no layer and drew an empty figure."""
    states = layer_states(HandWritten(), [[5, 6, 7], [8, 9, 5]])
    assert len(list(states)) > 1
    with pytest.raises(ValueError, match="call layer_states again"):
        list(states)
