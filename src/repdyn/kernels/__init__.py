"""Clouds in, numbers out: pure torch, any device, any floating dtype; float64 where it decides.

Every kernel returns NaN where its value is undefined; ``kernel.or_raise`` raises :class:`Undefined` with the reason.
Inputs of another shape or dtype than its docstring names raise ValueError, and so do settings outside their range,
numbers of points that do not match, and other groups.
"""

from repdyn.kernels.anisotropy import anisotropy
from repdyn.kernels.cloud import Cloud, Undefined, full_precision, gaussian_like, nan_if_undefined
from repdyn.kernels.cosines import (
    alignment,
    alignment_falls,
    alignment_gradient,
    mean_cosine,
    norm,
    step_cosine,
    step_length,
)
from repdyn.kernels.dimension import gride, levina_bickel, local_dimension, ph_dimension
from repdyn.kernels.groups import (
    attention_topic_gap,
    attention_topic_mean,
    class_variance,
    lidar,
    self_similarity,
    topic_gap,
    topic_gap_dot,
    topic_mean,
)
from repdyn.kernels.neighbours import NEAR_DUPLICATE, near_duplicate_share, same_group_share
from repdyn.kernels.outliers import massive_activation_share, outlier_kurtosis, top_norm_variance_share
from repdyn.kernels.sequences import (
    Sequences,
    attention_evenness,
    curvature,
    largest_activation,
    prompt_entropy,
    sequence_cosine,
    sequence_entropy,
    sink_rate,
)
from repdyn.kernels.similarity import (
    information_imbalance,
    linear_cka,
    linearity,
    mutual_knn,
    procrustes_distance,
    token_imbalance,
)
from repdyn.kernels.spectrum import (
    alpha_req,
    components,
    effective_rank,
    isoscore,
    participation_ratio,
    rank_me,
    unbiased_participation_ratio,
)
from repdyn.kernels.two_nn import two_nn
from repdyn.kernels.vocabulary import Vocabulary, token_cosine, token_distance, token_rank, token_top1_match
from repdyn.kernels.weights import update_ratio, weight_norm, weight_stable_rank

__all__ = [
    "NEAR_DUPLICATE",
    "Cloud",
    "Sequences",
    "Undefined",
    "Vocabulary",
    "alignment",
    "alignment_falls",
    "alignment_gradient",
    "alpha_req",
    "anisotropy",
    "attention_evenness",
    "attention_topic_gap",
    "attention_topic_mean",
    "class_variance",
    "components",
    "curvature",
    "effective_rank",
    "full_precision",
    "gaussian_like",
    "gride",
    "information_imbalance",
    "isoscore",
    "largest_activation",
    "levina_bickel",
    "lidar",
    "linear_cka",
    "linearity",
    "local_dimension",
    "massive_activation_share",
    "mean_cosine",
    "mutual_knn",
    "nan_if_undefined",
    "near_duplicate_share",
    "norm",
    "outlier_kurtosis",
    "participation_ratio",
    "ph_dimension",
    "procrustes_distance",
    "prompt_entropy",
    "rank_me",
    "same_group_share",
    "self_similarity",
    "sequence_cosine",
    "sequence_entropy",
    "sink_rate",
    "step_cosine",
    "step_length",
    "token_cosine",
    "token_distance",
    "token_imbalance",
    "token_rank",
    "token_top1_match",
    "top_norm_variance_share",
    "topic_gap",
    "topic_gap_dot",
    "topic_mean",
    "two_nn",
    "unbiased_participation_ratio",
    "update_ratio",
    "weight_norm",
    "weight_stable_rank",
]
