"""Point clouds in, numbers out: pure torch, any device, any floating dtype; float64 where it decides.

Every kernel returns NaN where its value is undefined; ``kernel.or_raise`` raises :class:`Undefined` with the reason.
"""

from repdyn.kernels.alignment import alignment, alignment_gradient
from repdyn.kernels.anisotropy import anisotropy
from repdyn.kernels.cka import linear_cka
from repdyn.kernels.class_variance import class_variance
from repdyn.kernels.cloud import Cloud, full_precision
from repdyn.kernels.components import components
from repdyn.kernels.cosines import mean_cosine
from repdyn.kernels.diagnostics import NEAR_DUPLICATE, near_duplicate_share, same_group_share
from repdyn.kernels.gride import gride
from repdyn.kernels.isoscore import isoscore
from repdyn.kernels.levina_bickel import levina_bickel
from repdyn.kernels.linearity import linearity
from repdyn.kernels.local_dimension import local_dimension
from repdyn.kernels.massive import massive_activation_share
from repdyn.kernels.mutual_knn import mutual_knn
from repdyn.kernels.outliers import outlier_kurtosis
from repdyn.kernels.ph_dimension import ph_dimension
from repdyn.kernels.power_law import alpha_req
from repdyn.kernels.procrustes import procrustes_distance
from repdyn.kernels.sequences import Sequences, largest_activation, sequence_cosine, sequence_entropy
from repdyn.kernels.sink_rate import sink_rate
from repdyn.kernels.spectrum import effective_rank, participation_ratio, rank_me
from repdyn.kernels.steps import norm, step_cosine, step_length
from repdyn.kernels.tokens import token_cosine, token_rank, token_top1_match
from repdyn.kernels.top_norms import top_norm_variance_share
from repdyn.kernels.topics import attention_topic_gap, topic_gap, topic_gap_dot
from repdyn.kernels.two_nn import two_nn
from repdyn.kernels.undefined import Undefined, nan_if_undefined
from repdyn.kernels.vocabulary import Vocabulary

__all__ = [
    "NEAR_DUPLICATE",
    "Cloud",
    "Sequences",
    "Undefined",
    "Vocabulary",
    "alignment",
    "alignment_gradient",
    "alpha_req",
    "anisotropy",
    "attention_topic_gap",
    "class_variance",
    "components",
    "effective_rank",
    "full_precision",
    "gride",
    "isoscore",
    "largest_activation",
    "levina_bickel",
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
    "rank_me",
    "same_group_share",
    "sequence_cosine",
    "sequence_entropy",
    "sink_rate",
    "step_cosine",
    "step_length",
    "token_cosine",
    "token_rank",
    "token_top1_match",
    "top_norm_variance_share",
    "topic_gap",
    "topic_gap_dot",
    "two_nn",
]
