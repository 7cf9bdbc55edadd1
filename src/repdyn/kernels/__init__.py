"""Clouds in, numbers out: pure torch, any device, any floating dtype; float64 where it decides.

A cloud is a tensor, an array of numpy or its kin, a data frame of numbers or nested lists, each of
shape (n_vectors, dim); anything else, such as a path, raises TypeError.

Every kernel returns NaN where its value is undefined; ``kernel.or_raise`` raises
:class:`UndefinedError` with the reason. Inputs of another shape or dtype than its docstring names
raise ValueError, and so do settings outside their range, numbers of points that do not match, and
other groups.

kernel, arguments   what makes a function a kernel: full precision, NaN, what users hand to it
cloud               ``Cloud``: points, and what several kernels need of them, computed once
spectrum            eigenvalues of the covariance; anisotropy finds the largest one alone
two_nn, dimension   intrinsic dimensions from nearest neighbours
neighbours          the neighbours of a cloud, searched once, without near duplicates; search and
                    candidates find them exactly, few_launches on an accelerator
neighbour_shares    what kind of point the nearest neighbour is
cosines             directions and lengths, of one layer and between layers
similarity, correlation, shared_neighbours, linear_map
                    two clouds of the same tokens
classes, topics     vectors with labels
outliers, local     few vectors or coordinates that decide; neighbourhoods
sequences           whole sequences, and attention
vocabulary, lens    tokens against the vocabulary, and predictions read from layers
weights             the weights of a block
"""

from repdyn.kernels.anisotropy import anisotropy as anisotropy
from repdyn.kernels.classes import class_variance as class_variance
from repdyn.kernels.classes import dime as dime
from repdyn.kernels.classes import lidar as lidar
from repdyn.kernels.classes import self_similarity as self_similarity
from repdyn.kernels.cloud import Cloud as Cloud
from repdyn.kernels.cloud import gaussian_like as gaussian_like
from repdyn.kernels.correlation import svcca as svcca
from repdyn.kernels.cosines import alignment as alignment
from repdyn.kernels.cosines import alignment_falls as alignment_falls
from repdyn.kernels.cosines import alignment_gradient as alignment_gradient
from repdyn.kernels.cosines import mean_cosine as mean_cosine
from repdyn.kernels.cosines import norm as norm
from repdyn.kernels.cosines import step_length as step_length
from repdyn.kernels.dimension import gride as gride
from repdyn.kernels.dimension import levina_bickel as levina_bickel
from repdyn.kernels.dimension import local_dimension as local_dimension
from repdyn.kernels.dimension import ph_dimension as ph_dimension
from repdyn.kernels.heads import head_anisotropy as head_anisotropy
from repdyn.kernels.heads import head_cosine as head_cosine
from repdyn.kernels.kernel import UndefinedError as UndefinedError
from repdyn.kernels.kernel import full_precision as full_precision
from repdyn.kernels.kernel import nan_if_undefined as nan_if_undefined
from repdyn.kernels.linear_map import linearity as linearity
from repdyn.kernels.local import local_anisotropy as local_anisotropy
from repdyn.kernels.neighbour_shares import NEAR_DUPLICATE as NEAR_DUPLICATE
from repdyn.kernels.neighbour_shares import near_duplicate_share as near_duplicate_share
from repdyn.kernels.neighbour_shares import same_group_share as same_group_share
from repdyn.kernels.neighbour_shares import same_label_fraction as same_label_fraction
from repdyn.kernels.outliers import massive_activation_share as massive_activation_share
from repdyn.kernels.outliers import outlier_kurtosis as outlier_kurtosis
from repdyn.kernels.outliers import top_norm_variance_share as top_norm_variance_share
from repdyn.kernels.sequences import Sequences as Sequences
from repdyn.kernels.sequences import attention_evenness as attention_evenness
from repdyn.kernels.sequences import curvature as curvature
from repdyn.kernels.sequences import largest_activation as largest_activation
from repdyn.kernels.sequences import prompt_entropy as prompt_entropy
from repdyn.kernels.sequences import sequence_cosine as sequence_cosine
from repdyn.kernels.sequences import sequence_entropy as sequence_entropy
from repdyn.kernels.sequences import sink_rate as sink_rate
from repdyn.kernels.shared_neighbours import information_imbalance as information_imbalance
from repdyn.kernels.shared_neighbours import mutual_knn as mutual_knn
from repdyn.kernels.shared_neighbours import token_imbalance as token_imbalance
from repdyn.kernels.similarity import linear_cka as linear_cka
from repdyn.kernels.similarity import procrustes_distance as procrustes_distance
from repdyn.kernels.spectrum import alpha_req as alpha_req
from repdyn.kernels.spectrum import components as components
from repdyn.kernels.spectrum import effective_rank as effective_rank
from repdyn.kernels.spectrum import effective_rank_of_variance as effective_rank_of_variance
from repdyn.kernels.spectrum import isoscore as isoscore
from repdyn.kernels.spectrum import participation_ratio as participation_ratio
from repdyn.kernels.spectrum import unbiased_participation_ratio as unbiased_participation_ratio
from repdyn.kernels.topics import attention_topic_gap as attention_topic_gap
from repdyn.kernels.topics import attention_topic_mean as attention_topic_mean
from repdyn.kernels.topics import topic_gap as topic_gap
from repdyn.kernels.topics import topic_gap_dot as topic_gap_dot
from repdyn.kernels.topics import topic_mean as topic_mean
from repdyn.kernels.two_nn import two_nn as two_nn
from repdyn.kernels.vocabulary import Vocabulary as Vocabulary
from repdyn.kernels.vocabulary import token_cosine as token_cosine
from repdyn.kernels.vocabulary import token_distance as token_distance
from repdyn.kernels.vocabulary import token_rank as token_rank
from repdyn.kernels.vocabulary import token_top1_match as token_top1_match
from repdyn.kernels.weights import update_ratio as update_ratio
from repdyn.kernels.weights import weight_norm as weight_norm
from repdyn.kernels.weights import weight_stable_rank as weight_stable_rank


def __getattr__(name: str) -> object:
    if name == "rank_me":
        raise AttributeError(
            "expected a kernel, got rank_me, which two papers use for two quantities; take "
            "effective_rank(x, centred=False) for RankMe of Garrido et al., or "
            "effective_rank_of_variance(x)"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
