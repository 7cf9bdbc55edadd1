from __future__ import annotations

import pytest
from shrunk import VOCABULARY, build
from small import random_tokens
from wrapped_models import MASK

from repdyn import Probe


@pytest.fixture
def probe() -> Probe:
    """10 sequences of 3 to 9 tokens, two batches of 28 vectors."""
    return Probe.from_tokens(
        random_tokens(10, 9, VOCABULARY), MASK, max_vectors=56, batch_vectors=28
    )


@pytest.fixture
def llama():
    return build("llama", "LlamaForCausalLM")
