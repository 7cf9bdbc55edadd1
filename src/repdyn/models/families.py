"""Small encoders and decoders on transformers' own classes, built from one set of sizes."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

Objective: TypeAlias = Literal["causal", "masked"]
FamilyName: TypeAlias = Literal[
    "gpt_neox", "gpt2", "bloom", "llama", "modernbert-decoder", "bert", "roberta", "modernbert"
]


@dataclass(frozen=True)
class _Family:
    """Names under which the configuration of a model family stores the common settings."""

    objective: Objective
    dropout: tuple[str, ...]
    """Names of the dropout probabilities."""
    feed_forward: str | None = "intermediate_size"
    """Name of the feed-forward width; None if it is always four times the hidden size."""
    position: str | None = "max_position_embeddings"
    """Name of the context length; None if positions are unlimited."""


_OF_MODERNBERT = ("attention_dropout", "embedding_dropout", "mlp_dropout")
_FAMILIES: dict[str, _Family] = {
    "gpt_neox": _Family("causal", ("hidden_dropout", "attention_dropout")),
    "gpt2": _Family("causal", ("resid_pdrop", "embd_pdrop", "attn_pdrop"), feed_forward="n_inner"),
    "bloom": _Family(
        "causal", ("hidden_dropout", "attention_dropout"), feed_forward=None, position=None
    ),
    "llama": _Family("causal", ("attention_dropout",)),
    "modernbert-decoder": _Family("causal", _OF_MODERNBERT),
    "bert": _Family("masked", ("hidden_dropout_prob", "attention_probs_dropout_prob")),
    "roberta": _Family("masked", ("hidden_dropout_prob", "attention_probs_dropout_prob")),
    "modernbert": _Family("masked", _OF_MODERNBERT),
}

_SENTENCE_TOKENS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")


def objective_of(family: str) -> Objective:
    """Return what a family is trained to predict: the next token ("causal") or masked ones
    ("masked").

    Raises:
        ValueError: the family is unknown.

    >>> objective_of("bert")
    'masked'
    """
    if family not in _FAMILIES:
        raise ValueError(
            f"expected a family among {', '.join(get_args(FamilyName))}, got {family!r}"
        )
    return _FAMILIES[family].objective


def build_model(
    family: str,
    *,
    vocab_size: int,
    hidden_size: int,
    n_layers: int,
    n_heads: int,
    context_length: int,
    dropout: float = 0.0,
    pad_token_id: int | None = None,
    global_attention: bool = False,
) -> PreTrainedModel:
    """Build a randomly initialised model with a language-modelling head.

    With ``global_attention`` every layer attends to the whole context, also in the families of
    which most layers attend to a sliding window (modernbert, modernbert-decoder); it changes
    nothing in the others.

    Raises:
        ValueError: the family is unknown, or ``hidden_size`` is no multiple of ``n_heads``.
    """
    objective = objective_of(family)
    if hidden_size % n_heads:
        raise ValueError(
            f"expected hidden_size to be a multiple of n_heads, got {hidden_size} and {n_heads}"
        )
    spec = _FAMILIES[family]
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "pad_token_id": pad_token_id,
        # the vocabularies here lack the sentence tokens to which the defaults refer; no model here
        # reads these ids, but one configuration rejects None
        **dict.fromkeys(
            _SENTENCE_TOKENS, (pad_token_id or 0) if family == "modernbert-decoder" else None
        ),
        **dict.fromkeys(spec.dropout, dropout),
    }
    if spec.feed_forward:
        sizes[spec.feed_forward] = 4 * hidden_size
    if spec.position:
        # RoBERTa numbers positions from pad_token_id + 1
        sizes[spec.position] = context_length + (
            (pad_token_id or 0) + 1 if family == "roberta" else 0
        )
    if global_attention and family.startswith("modernbert"):
        sizes["layer_types"] = ["full_attention" for _ in range(n_layers)]
    if family == "llama":
        sizes["num_key_value_heads"] = n_heads
    config = AutoConfig.for_model(family, **sizes)
    auto = AutoModelForCausalLM if objective == "causal" else AutoModelForMaskedLM
    return auto.from_config(config)
