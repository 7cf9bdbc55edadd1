"""Which precision is fast on this machine."""

import torch


def has_fast_bfloat16(accelerator: str = "auto") -> bool:
    """Return whether the GPU, or the processor where none is used, multiplies bfloat16 matrices in hardware.

    Others emulate it, several times slower than float32.

    Args:
        accelerator: that of Lightning's Trainer: "cpu" ignores a GPU.
    """
    if accelerator != "cpu" and torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
