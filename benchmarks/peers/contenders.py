"""The implementations of the two quantities, with the call that is timed, and their float64
references.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Call: TypeAlias = Callable[[Any, Tensor], Any]
"""``call(module, x)`` on points x (n, dim) returns the quantity, or the distances r1, r2 as (n, 2).
"""

_EVERY_ROW = 1e11
"""Number of coordinate differences (rows * rows * columns) up to which the reference uses every
row.
"""
_SOME_ROWS = 256
_DISCARDED = 0.1


@dataclass(frozen=True)
class Contender:
    """An implementation of a quantity."""

    name: str
    call: Call
    description: str
    """A short description of the call."""
    package: str
    """The package whose version is reported."""
    module: str
    """The module that is passed to the call."""
    on_gpu: bool = False
    """Whether it runs on the device of the points; others are left out on a GPU."""
    distances: Call | None = None
    """How an implementation of TwoNN that returns only the dimension gets r1 and r2; checked, not
    timed.
    """
    discarded: float = _DISCARDED
    """Share of the ratios that its dimension leaves out."""
    largest: float = np.inf
    """Number of coordinate differences beyond which it would take hours."""

    def load(self) -> ModuleType:
        """Import the module.

        Raises:
            ModuleNotFoundError: its package is not installed.
            Exception: whatever a package raises that is installed and does not fit its
                dependencies.
        """
        return import_module(self.module)

    def absence(self) -> str | None:
        """Return why it cannot be used here; None if it can."""
        try:
            self.load()
        except ModuleNotFoundError as error:
            if error.name == self.module.partition(".")[0]:
                return "not installed here"
            return f"needs {error.name}, which is not installed here"
        except Exception as error:  # an extension built for another numpy raises what it likes
            return f"does not import here ({type(error).__name__})"
        return None

    def version(self) -> str:
        """Return the version of its package, or why it is unknown."""
        return self.absence() or metadata.version(self.package)


@dataclass(frozen=True)
class Reference:
    """Reference values in float64."""

    value: float | None
    """None if there are too many points to compute it."""
    rows: np.ndarray
    distances: np.ndarray
    """r1 and r2 of these rows, (len(rows), 2); empty for a quantity without distances."""

    def value_for(self, contender: Contender) -> float | None:
        """Return the value with as many of the ratios left out as the contender does."""
        if self.value is None or not len(self.distances):
            return self.value
        return dimension(self.distances, contender.discarded)


@dataclass(frozen=True)
class Errors:
    """Largest relative errors; None if the contender or the reference has no such value."""

    value: float | None
    distances: float | None


@dataclass(frozen=True)
class Quantity:
    """A quantity, with the matrix product to which its time is compared."""

    name: str
    title: str
    product: Callable[[Tensor], Tensor]
    product_name: str
    contenders: tuple[Contender, ...]
    reference: Callable[[Tensor], Reference]


def errors_of(
    result: Any, reference: Reference, contender: Contender, distances: Any = None
) -> Errors:
    """Compute the errors of a result and of its distances; NaN if undefined, for instance with
    distances of 0.
    """
    value = _float64(result)
    pairs = None if distances is None else _float64(distances)
    if value.ndim == 2:
        value, pairs = np.float64(dimension(value)), value
    expected = reference.value_for(contender)
    return Errors(
        None if expected is None else float(abs(value / expected - 1)),
        None
        if pairs is None
        else float(np.abs(pairs[reference.rows] / reference.distances - 1).max()),
    )


def _float64(found: Any) -> np.ndarray:
    return np.asarray(found.cpu() if isinstance(found, Tensor) else found, dtype=np.float64)


def dimension(distances: np.ndarray, discarded: float = _DISCARDED) -> float:
    """Compute TwoNN from r1 and r2, (n, 2): slope through the origin of -log(1 - F) on log(r2 /
    r1).

    Ratios that are not finite count as the largest.
    """
    n = len(distances)
    n_used = int(n * (1 - discarded))
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.sort(np.log(distances[:, 1] / distances[:, 0]))[:n_used]
        return float(x @ -np.log1p(-np.arange(1, n_used + 1) / n) / (x @ x))


def two_nearest(x: Tensor, rows: Tensor) -> Tensor:
    """Compute the distances from some rows to their two nearest neighbours, (len(rows), 2), by
    float64 differences.
    """
    points = x.double()
    nearest = []
    for some in rows.split(64):
        distances = torch.cdist(points[some], points, compute_mode="donot_use_mm_for_euclid_dist")
        distances.scatter_(1, some[:, None], torch.inf)
        nearest.append(distances.topk(2, largest=False).values)
    return torch.cat(nearest)


def _two_nn_reference(x: Tensor) -> Reference:
    n = len(x)
    complete = n * n * x.shape[1] <= _EVERY_ROW
    rows = torch.arange(n, device=x.device)[:: 1 if complete else -(-n // _SOME_ROWS)]
    distances = two_nearest(x, rows).cpu().numpy()
    return Reference(dimension(distances) if complete else None, rows.cpu().numpy(), distances)


def _anisotropy_reference(x: Tensor) -> Reference:
    centred = _centred(x.double())
    short = centred if x.shape[0] < x.shape[1] else centred.mT
    variances = torch.linalg.eigvalsh(short @ short.mT)
    nothing = np.empty(0)
    return Reference((variances[-1] / variances.sum()).item(), nothing, nothing)


def _faiss(faiss: Any, x: Tensor) -> np.ndarray:
    index = faiss.IndexFlatL2(x.shape[1])
    index.add(x.numpy())
    squares = index.search(x.numpy(), 3)[0][:, 1:]  # the nearest is the point itself
    return np.sqrt(squares.clip(0))


def _dadapy(dadapy: Any, x: Tensor) -> float:
    data = dadapy.Data(coordinates=x.numpy(), maxk=2, n_jobs=torch.get_num_threads())
    return data.compute_id_2NN()[0]


def _gram(_: Any, x: Tensor) -> Tensor:
    centred = _centred(x)
    variances = torch.linalg.eigvalsh(centred.mT @ centred)
    return variances[-1] / variances.sum()


def _svdvals(_: Any, x: Tensor) -> Tensor:
    squares = torch.linalg.svdvals(_centred(x)).square()
    return squares[0] / squares.sum()


def _svd_lowrank(_: Any, x: Tensor) -> Tensor:
    centred = _centred(x)
    return _share(torch.svd_lowrank(centred)[1][0], centred)


def _numpy_svd(numpy: Any, x: Tensor) -> float:
    points = x.numpy()
    squares = numpy.linalg.svd(points - points.mean(0), compute_uv=False) ** 2
    return squares[0] / squares.sum()


def _svds(linalg: Any, x: Tensor) -> Tensor:
    centred = _centred(x)
    singular_value = linalg.svds(centred.numpy(), k=1, return_singular_vectors=False)[0]
    return _share(singular_value, centred)


def _pca(decomposition: Any, x: Tensor) -> float:
    return decomposition.PCA(n_components=1).fit(x.numpy()).explained_variance_ratio_[0]


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def _share(singular_value: Any, centred: Tensor) -> Tensor:
    return (singular_value / torch.linalg.vector_norm(centred)).square()


TWO_NN = Quantity(
    name="two_nn",
    title="Intrinsic dimension (TwoNN)",
    product=lambda x: x @ x.T,
    product_name="X @ X.T",
    contenders=(
        Contender(
            name="repdyn",
            call=lambda kernels, x: kernels.two_nn(x),
            description="two_nn(X)",
            package="repdyn",
            module="repdyn.kernels",
            on_gpu=True,
            distances=lambda kernels, x: kernels.search.nearest_neighbours(x, 2).distances,
        ),
        Contender(
            name="scikit-dimension",
            call=lambda estimators, x: estimators.TwoNN().fit(x.numpy()).dimension_,
            description="skdim.id.TwoNN().fit(X)",
            package="scikit-dimension",
            module="skdim.id",
        ),
        Contender(
            name="llm-microscope",
            call=lambda functions, x: functions.intrinsic_dimension(x, x.device),
            description="intrinsic_dimension(X, device), of the lowest fifth of the ratios",
            package="llm-microscope",
            module="llm_microscope",
            on_gpu=True,
            discarded=0.8,
            largest=2e10,
        ),
        Contender(
            name="dadapy",
            call=_dadapy,
            description="Data(X, maxk=2).compute_id_2NN()",
            package="dadapy",
            module="dadapy",
        ),
        Contender(
            name="scikit-learn",
            call=lambda neighbors, x: (
                neighbors.NearestNeighbors(n_neighbors=2, algorithm="brute")
                .fit(x.numpy())
                .kneighbors()[0]
            ),
            description='NearestNeighbors(n_neighbors=2, algorithm="brute").fit(X).kneighbors(), '
            "distances alone",
            package="scikit-learn",
            module="sklearn.neighbors",
        ),
        Contender(
            name="faiss",
            call=_faiss,
            description="IndexFlatL2.search(X, 3), distances alone",
            package="faiss-cpu",
            module="faiss",
        ),
        Contender(
            name="torch.cdist",
            call=lambda torch, x: torch.cdist(x, x).topk(3, largest=False).values[:, 1:],
            description="cdist(X, X).topk(3), distances alone",
            package="torch",
            module="torch",
            on_gpu=True,
        ),
    ),
    reference=_two_nn_reference,
)

ANISOTROPY = Quantity(
    name="anisotropy",
    title="Anisotropy",
    product=lambda x: x.T @ x,
    product_name="X.T @ X",
    contenders=(
        Contender(
            name="repdyn",
            call=lambda kernels, x: kernels.anisotropy(x),
            description="anisotropy(X)",
            package="repdyn",
            module="repdyn.kernels",
            on_gpu=True,
        ),
        Contender(
            name="llm-microscope",
            call=lambda functions, x: functions.calculate_anisotropy_torch(x),
            description="calculate_anisotropy_torch(X)",
            package="llm-microscope",
            module="llm_microscope",
            on_gpu=True,
        ),
        Contender(
            name="torch.svdvals",
            call=_svdvals,
            description="linalg.svdvals(X)",
            package="torch",
            module="torch",
            on_gpu=True,
        ),
        Contender(
            name="torch.gram",
            call=_gram,
            description="linalg.eigvalsh(X.T @ X) in float32",
            package="torch",
            module="torch",
            on_gpu=True,
        ),
        Contender(
            name="torch.svd_lowrank",
            call=_svd_lowrank,
            description="svd_lowrank(X) and the Frobenius norm",
            package="torch",
            module="torch",
            on_gpu=True,
        ),
        Contender(
            name="numpy.svd",
            call=_numpy_svd,
            description="linalg.svd(X, compute_uv=False)",
            package="numpy",
            module="numpy",
        ),
        Contender(
            name="scipy.svds",
            call=_svds,
            description="svds(X, k=1) and the Frobenius norm",
            package="scipy",
            module="scipy.sparse.linalg",
        ),
        Contender(
            name="scikit-learn",
            call=_pca,
            description="PCA(n_components=1).fit(X)",
            package="scikit-learn",
            module="sklearn.decomposition",
        ),
    ),
    reference=_anisotropy_reference,
)

QUANTITIES = (TWO_NN, ANISOTROPY)
