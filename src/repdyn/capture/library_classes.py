"""Classes of transformers, of DeepSpeed and of torch's sharding, recognised without importing them.

An object exists only after the module of its class has been imported. A training that uses none of these classes does
not wait for their import: that of transformers takes longer than that of torch.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.distributed.tensor import DTensor
    from transformers import PreTrainedConfig, PreTrainedModel


def is_pretrained_model(candidate: object) -> TypeGuard[PreTrainedModel]:
    """Return whether something is a Hugging Face model."""
    return _is_a(candidate, "transformers.modeling_utils", "PreTrainedModel")


def is_pretrained_config(candidate: object) -> TypeGuard[PreTrainedConfig]:
    """Return whether something is the configuration of a Hugging Face model."""
    return _is_a(candidate, "transformers.configuration_utils", "PreTrainedConfig")


def is_fsdp1(candidate: object) -> TypeGuard[FullyShardedDataParallel]:
    """Return whether something is a module wrapped in FullyShardedDataParallel."""
    return _is_a(candidate, "torch.distributed.fsdp", "FullyShardedDataParallel")


def is_fsdp2(candidate: object) -> TypeGuard[FSDPModule]:
    """Return whether something is a module that ``fully_shard`` was applied to."""
    return _is_a(candidate, "torch.distributed.fsdp", "FSDPModule")


def is_dtensor(candidate: object) -> TypeGuard[DTensor]:
    """Return whether something is a tensor that is distributed over ranks."""
    return _is_a(candidate, "torch.distributed.tensor", "DTensor")


def is_deepspeed_engine(candidate: object) -> bool:
    """Return whether something is a module wrapped in the engine of DeepSpeed."""
    return _is_a(candidate, "deepspeed.runtime.engine", "DeepSpeedEngine")


def _is_a(candidate: object, module: str, name: str) -> bool:
    kind: Any = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(candidate, kind)
