"""Whether models have learned anything, which published values of trained models presuppose."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from repdyn.probe import Probe
from repdyn.recipes.measured import Measured
from repdyn.store.scalars import PROBE_LOSS
from repdyn.tables.effects import CannotBeJudgedError


def unigram_entropy(probe: Probe) -> float:
    """Return the entropy of the text tokens of a probe in nats: the loss of a model that knows their frequencies alone.

    >>> tokens = [[0, 1, 2, 3] * 8] * 8
    >>> round(unigram_entropy(Probe.from_tokens(tokens, max_vectors=64)) / torch.log(torch.tensor(4.0)).item(), 6)
    1.0
    """
    tokens = probe.tokens[~torch.isin(probe.tokens, torch.tensor(probe.special_ids, dtype=torch.int64))]
    shares = torch.unique(tokens, return_counts=True)[1].double() / len(tokens)
    return float(-(shares * shares.log()).sum())


def require_trained(models: Iterable[Measured]) -> list[str]:
    """Return why it cannot be told of some models whether they have learned anything.

    A model has learned something if its last loss on the probe is below the entropy of the probe's tokens.

    Raises:
        CannotBeJudgedError: a model has not.
    """
    unknown, untrained = [], []
    for each in models:
        losses = each.scalar(PROBE_LOSS)
        if not losses or each.probe is None:
            missing = "copy of the probe" if losses else "loss on the probe"
            unknown.append(f"{each.name} has no {missing} in the store")
            continue
        last, entropy = [*losses.values()][-1], unigram_entropy(each.probe)
        if last >= entropy:
            untrained.append(f"{each.name} ({last:.3g} and {entropy:.3g})")
    if untrained:
        raise CannotBeJudgedError(
            "nothing was learned, since the last loss on the probe is not below the entropy of its tokens: "
            f"{', '.join(untrained)}"
        )
    return [f"whether it has learned anything cannot be told: {', '.join(unknown)}"] if unknown else []
