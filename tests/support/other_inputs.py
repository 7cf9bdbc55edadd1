"""Small models of images, waveforms and pairs with their inputs, and probes of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import (
    CLIPConfig,
    CLIPModel,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2Model,
    WhisperConfig,
    WhisperModel,
)

from repdyn import Probe

N_INPUTS, OF_EACH = 48, 8


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids(length: int, first: int = 3) -> Tensor:
    return torch.randint(first, 60, (N_INPUTS, length), generator=torch.Generator().manual_seed(1))


def lengths_mask(length: int, shortest: int) -> Tensor:
    lengths = torch.randint(
        shortest, length + 1, (N_INPUTS, 1), generator=torch.Generator().manual_seed(2)
    )
    return (torch.arange(length) < lengths).long()


def samples() -> dict[str, Tensor]:
    mask = lengths_mask(800, 500)
    return {"input_values": random(N_INPUTS, 800) * mask, "attention_mask": mask}


def frames_of_samples(mask: Tensor) -> Tensor:
    """Return how many of the 40 frames of 800 samples lie in the samples that the mask covers."""
    return mask.sum(1) * 40 // 800


def pairs() -> dict[str, Tensor]:
    mask = lengths_mask(12, OF_EACH)
    return {
        "input_ids": ids(12),
        "attention_mask": mask,
        "pixel_values": random(N_INPUTS, 3, 32, 32),
    }


def clip() -> CLIPModel:
    text = {
        "vocab_size": 60,
        "max_position_embeddings": 12,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 1,
    }
    vision = {"image_size": 32, "patch_size": 8, "hidden_size": 24}
    shared = {"intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return CLIPModel(
        CLIPConfig(
            text_config={**text, **shared, "hidden_size": 16},
            vision_config={**vision, **shared},
            projection_dim=8,
        )
    )


def whisper() -> WhisperModel:
    return WhisperModel(
        WhisperConfig(
            vocab_size=60,
            d_model=16,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            num_mel_bins=4,
            max_source_positions=20,
            max_target_positions=20,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        )
    )


def wav2vec2() -> Wav2Vec2Model:
    return Wav2Vec2Model(
        Wav2Vec2Config(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            conv_dim=(8, 8),
            conv_stride=(5, 4),
            conv_kernel=(5, 4),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=2,
        )
    )


def vit() -> ViTForImageClassification:
    return ViTForImageClassification(
        ViTConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            image_size=32,
            patch_size=8,
        )
    )


@dataclass(frozen=True)
class Family:
    """A model, its inputs, and how many positions count at the start of each input's states, by
    stack.
    """

    build: Callable[[], PreTrainedModel]
    inputs: Callable[[], dict[str, Tensor]]
    positions: Any
    counting: dict[str | None, Callable[[dict[str, Tensor], int], tuple[int, Tensor]]]
    """From the inputs and the number of positions to the first one that counts, and how many do,
    (n_inputs,).
    """
    reported: dict[str | None, Callable[[Any], tuple[Tensor, ...]]]
    """From the model's output to the states that it reports."""
    layers: dict[str, str] | None = None
    causal: dict[str, bool] | bool = False
    n_blocks: dict[str | None, int] = field(default_factory=lambda: {None: 2})


def whole(_inputs: dict[str, Tensor], n_positions: int) -> tuple[int, Tensor]:
    return 0, torch.full((N_INPUTS,), n_positions)


def without_first(_inputs: dict[str, Tensor], n_positions: int) -> tuple[int, Tensor]:
    return 1, torch.full((N_INPUTS,), n_positions - 1)


FAMILIES = {
    "ViT": Family(
        build=vit,
        inputs=lambda: {"pixel_values": random(N_INPUTS, 3, 32, 32)},
        positions=slice(1, None),
        counting={None: without_first},
        reported={None: lambda output: output.hidden_states},
    ),
    "CLIP": Family(
        build=clip,
        inputs=pairs,
        positions={"text": "attention_mask", "vision": slice(1, None)},
        counting={
            "text": lambda inputs, n: (0, inputs["attention_mask"].sum(1)),
            "vision": without_first,
        },
        reported={
            "text": lambda output: output.text_model_output.hidden_states,
            "vision": lambda output: output.vision_model_output.hidden_states,
        },
        layers={"text": "text_model.encoder.layers.*", "vision": "vision_model.encoder.layers.*"},
        causal={"text": True, "vision": False},
        n_blocks={"text": 2, "vision": 2},
    ),
    "Whisper": Family(
        build=whisper,
        inputs=lambda: {"input_features": random(N_INPUTS, 4, 40), "decoder_input_ids": ids(12)},
        positions=None,
        counting={"encoder": whole, "decoder": whole},
        reported={
            "encoder": lambda output: output.encoder_hidden_states,
            "decoder": lambda output: output.decoder_hidden_states,
        },
        causal={"encoder": False, "decoder": True},
        n_blocks={"encoder": 2, "decoder": 2},
    ),
    "wav2vec2": Family(
        build=wav2vec2,
        inputs=samples,
        positions="attention_mask",
        counting={None: lambda inputs, n: (0, frames_of_samples(inputs["attention_mask"]))},
        reported={None: lambda output: output.hidden_states},
    ),
}


def model_of(family: Family) -> PreTrainedModel:
    torch.manual_seed(0)
    np.random.seed(0)  # wav2vec2 masks its inputs with it while it trains
    return family.build().eval()


def batches_of(family: Family) -> list[dict[str, Tensor]]:
    """Return the inputs in batches of different sizes, one as large as a state has positions."""
    inputs = family.inputs()
    return [
        {name: value[part] for name, value in inputs.items()}
        for part in torch.arange(N_INPUTS).split([16, 20, 12])
    ]


def probe_of(family: Family) -> Probe:
    return Probe.from_inputs(
        batches_of(family),
        positions=family.positions,
        causal=family.causal,
        max_vectors=384,
        batch_vectors=192,
    )


def values(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame[frame["layer"].notna()]
    keys = ["step", "stack", "layer", "metric", "subset"]
    frame = frame.sort_values(keys)[[*keys, "value", "std"]].reset_index(drop=True)
    return frame.assign(stack=frame["stack"].astype(object).fillna(""))


def step(model: nn.Module, inputs: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> Tensor:
    output = model(**inputs)
    loss = sum(
        value.float().square().mean()
        for value in output.values()
        if isinstance(value, Tensor) and value.requires_grad
    )
    assert isinstance(loss, Tensor)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
