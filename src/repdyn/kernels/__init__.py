"""Point clouds in, numbers out: pure torch, any device, any floating dtype; float64 where it decides."""

from repdyn.kernels.alignment import alignment, alignment_gradient, alignment_gradient_of, alignment_of
from repdyn.kernels.anisotropy import anisotropy, anisotropy_of
from repdyn.kernels.cka import linear_cka, linear_cka_of
from repdyn.kernels.cloud import Cloud, Undefined, full_precision
from repdyn.kernels.components import components, components_of
from repdyn.kernels.cosines import mean_cosine, mean_cosine_of
from repdyn.kernels.diagnostics import NEAR_DUPLICATE, near_duplicate_share, same_group_share
from repdyn.kernels.gride import SCALES, gride, gride_of
from repdyn.kernels.isoscore import isoscore, isoscore_of
from repdyn.kernels.levina_bickel import levina_bickel, levina_bickel_of
from repdyn.kernels.linearity import linearity, linearity_of
from repdyn.kernels.massive import massive_activation_share, massive_activation_share_of
from repdyn.kernels.power_law import alpha_req, alpha_req_of
from repdyn.kernels.sink_rate import sink_rate, sink_rate_of
from repdyn.kernels.spectrum import effective_rank, effective_rank_of, participation_ratio, participation_ratio_of
from repdyn.kernels.steps import norm, norm_of, step_cosine, step_cosine_of, step_length, step_length_of
from repdyn.kernels.tokens import (
    token_cosine,
    token_cosine_of,
    token_rank,
    token_rank_of,
    token_top1_match,
    token_top1_match_of,
)
from repdyn.kernels.top_norms import top_norm_variance_share, top_norm_variance_share_of
from repdyn.kernels.topics import (
    attention_topic_gap,
    attention_topic_gap_of,
    topic_gap,
    topic_gap_dot,
    topic_gap_dot_of,
    topic_gap_of,
)
from repdyn.kernels.two_nn import two_nn, two_nn_of
from repdyn.kernels.vocabulary import Vocabulary

__all__ = [
    "NEAR_DUPLICATE",
    "SCALES",
    "Cloud",
    "Undefined",
    "Vocabulary",
    "alignment",
    "alignment_gradient",
    "alignment_gradient_of",
    "alignment_of",
    "alpha_req",
    "alpha_req_of",
    "anisotropy",
    "anisotropy_of",
    "attention_topic_gap",
    "attention_topic_gap_of",
    "components",
    "components_of",
    "effective_rank",
    "effective_rank_of",
    "full_precision",
    "gride",
    "gride_of",
    "isoscore",
    "isoscore_of",
    "levina_bickel",
    "levina_bickel_of",
    "linear_cka",
    "linear_cka_of",
    "linearity",
    "linearity_of",
    "massive_activation_share",
    "massive_activation_share_of",
    "mean_cosine",
    "mean_cosine_of",
    "near_duplicate_share",
    "norm",
    "norm_of",
    "participation_ratio",
    "participation_ratio_of",
    "same_group_share",
    "sink_rate",
    "sink_rate_of",
    "step_cosine",
    "step_cosine_of",
    "step_length",
    "step_length_of",
    "token_cosine",
    "token_cosine_of",
    "token_rank",
    "token_rank_of",
    "token_top1_match",
    "token_top1_match_of",
    "top_norm_variance_share",
    "top_norm_variance_share_of",
    "topic_gap",
    "topic_gap_dot",
    "topic_gap_dot_of",
    "topic_gap_of",
    "two_nn",
    "two_nn_of",
]
