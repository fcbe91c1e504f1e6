"""The rows of a ColBERT model in forms that fit an index: shorter, fewer, of fewer bits, or one vector for all.

embed.py calls `converted`, and `pool_tokens` for models that always pool. Sources: sentence-transformers 6,
HierarchicalTokenPooling; MUVERA (arXiv 2405.19504) with the random numbers and the rules of fastembed, so that
encodings of both can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vectord.checkpoints.spec import ModelSpec
from vectord.engine.operations.postprocess import finish, in_precision
from vectord.errors import InvalidField, TooManyInputs
from vectord.schema import EmbedRequest, Float32, Int32, MultiVectorOptions, Muvera

# Pooling compares all pairs of a text's tokens: 256 MiB for so many.
MAX_POOLED_TOKENS = 8192
MAX_ENCODING = 65_536  # numbers of an encoding: the widest vectors that vector databases store

Rows = npt.NDArray[np.generic]  # (n, C)


class ColbertForms(NamedTuple):
    rows: Sequence[Rows]
    encodings: Float32 | None


def check_multivectors(spec: ModelSpec, request: EmbedRequest) -> None:
    """Raises InvalidField for options that this model's vectors, or queries, cannot have."""
    assert spec.colbert is not None, "the model makes ColBERT vectors"
    options, width = request.colbert, spec.colbert.dimensions
    if request.patches and spec.image_text is None:
        raise InvalidField("{field}: this model's vectors are those of words.", field="patches")
    if request.patches and (options.pool_factor > 1 or spec.colbert.token_pooling is not None or not options.rows):
        raise InvalidField("{field} belong to the vectors of single rows; leave pooling out.", field="patches")
    if options.dimensions is not None and not 1 <= options.dimensions <= width:
        template = "{field} must be between 1 and {limit}; got {given}."
        raise InvalidField(template, field="colbert.dimensions", limit=width, given=options.dimensions)
    if options.pool_factor > 1 and request.text.is_query:
        raise InvalidField("{field} pools documents; leave it out for queries.", field="colbert.pool_factor")
    if (muvera := options.muvera) is None:
        if not options.rows:
            raise InvalidField("{field} can be false only with {body.colbert.muvera}.", field="colbert.rows")
        return
    width = options.dimensions or width
    if muvera.dim_proj > width:
        template = "{field} may be at most the width of the vectors, {limit}; got {given}."
        raise InvalidField(template, field="colbert.muvera.dim_proj", limit=width, given=muvera.dim_proj)
    if muvera.width > MAX_ENCODING:
        template = "{field}: r_reps * 2**k_sim * dim_proj may be at most {limit}; got {given}."
        raise InvalidField(template, field="colbert.muvera", limit=MAX_ENCODING, given=muvera.width)


def converted(each: Sequence[Float32], options: MultiVectorOptions, *, query: bool) -> ColbertForms:
    """The rows (n_i, C) of each text, of length 1, as the options say; and with `muvera` a vector of each text.

    Cut and scaled to length 1, then pooled, then encoded, then in the precision.
    """
    if options.dimensions is not None:
        each = [finish(rows, options.dimensions, normalize=True) for rows in each]
    if options.pool_factor > 1:
        each = [pool_tokens(rows, options.pool_factor, options.protected_tokens) for rows in each]
    encodings = None
    if options.muvera is not None:
        encodings = np.stack([encode(rows, options.muvera, query=query) for rows in each])
    return ColbertForms([in_precision(rows, options.precision) for rows in each], encodings)


# --- pooling --------------------------------------------------------------------------------------------------


def pool_tokens(rows: Float32, factor: float, protected: int, *, normalize: bool = True) -> Float32:
    """The first `protected` rows, and the means of about 1 / factor as many clusters as there are other rows.

    rows (n, C) of length 1. Returns (m, C); a cluster has the place of its first row. normalize: scale the means to
    length 1. Raises TooManyInputs for too many rows.
    """
    if len(rows) > MAX_POOLED_TOKENS:
        template = "{field} may hold texts of at most {most} tokens where these are pooled; got {tokens}."
        raise TooManyInputs(template, most=MAX_POOLED_TOKENS, tokens=len(rows))
    kept, others = rows[:protected], rows[protected:]
    clusters = max(int(len(others) // factor), 1)
    if clusters >= len(others):
        return rows
    labels = cluster(np.clip(1 - others @ others.T, 0, 2), clusters)
    means = np.zeros((labels.max() + 1, rows.shape[1]))
    np.add.at(means, labels, others)
    means /= np.bincount(labels)[:, None]
    return np.concatenate((kept, finish(means.astype(np.float32), None, normalize)))


def cluster(distances: Float32, clusters: int) -> Int32:
    """The cluster (n,) of each point, from 0 in the order of their first points: Ward's linkage, cut into at most
    `clusters`; fewer where distances are equal.

    distances (n, n), symmetric. Algorithm: nearest-neighbour chain (Müllner 2011), with Ward's update of Lance and
    Williams, as scipy's `linkage` and `fcluster` with "maxclust".
    """
    count = len(distances)
    squares = distances * distances
    np.fill_diagonal(squares, np.inf)
    sizes = np.ones(count, np.float32)
    alive = np.ones(count, np.bool_)
    merges: list[tuple[float, int, int]] = []  # squared distance, and a point of each cluster
    chain: list[int] = []
    while len(merges) < count - 1:
        if not chain:
            chain.append(int(alive.argmax()))
        nearest = int(squares[chain[-1]].argmin())
        if len(chain) > 1 and squares[chain[-1], chain[-2]] <= squares[chain[-1], nearest]:
            first, second = chain.pop(), chain.pop()
            height = squares[first, second]
            merges.append((float(height), first, second))
            joined = (sizes[first] + sizes) * squares[first] + (sizes[second] + sizes) * squares[second]
            joined = (joined - sizes * height) / (sizes[first] + sizes[second] + sizes)
            joined[[first, second]] = np.inf
            squares[second] = squares[:, second] = joined
            squares[first] = squares[:, first] = np.inf
            sizes[second] += sizes[first]
            alive[first] = False
        else:
            chain.append(nearest)
    limit = sorted(merges)[count - clusters - 1][0]
    parents = np.arange(count)
    for height, first, second in merges:  # a merge is after those of its clusters
        if height <= limit:
            parents[first] = second
    for point in range(count):
        while parents[point] != parents[parents[point]]:
            parents[point] = parents[parents[point]]
    _, firsts, labels = np.unique(parents, return_index=True, return_inverse=True)
    order: Int32 = firsts.argsort().argsort()[labels].astype(np.int32)
    return order


# --- MUVERA ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _projections(width: int, muvera: Muvera) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Hyperplanes (r_reps, C, k_sim), and projections (r_reps, C, dim_proj). They depend on the seed alone."""
    generator = np.random.default_rng(muvera.seed)
    planes = generator.normal(size=(muvera.r_reps, width, muvera.k_sim))
    if muvera.dim_proj == width:
        return planes, np.broadcast_to(np.eye(width), (muvera.r_reps, width, width))
    signs = generator.choice([-1, 1], size=(muvera.r_reps, width, muvera.dim_proj))
    return planes, signs / np.sqrt(muvera.dim_proj)


@lru_cache(maxsize=10)
def _differing_bits(count: int) -> npt.NDArray[np.uint8]:
    """The bits (2**count, 2**count) in which two clusters differ; 1 MiB for the most."""
    bits = np.arange(1 << count)[:, None] >> np.arange(count) & 1
    differing: npt.NDArray[np.uint8] = (bits[:, None] != bits).sum(axis=2, dtype=np.uint8)
    return differing


def encode(rows: Float32, muvera: Muvera, *, query: bool) -> Float32:
    """One vector (muvera.width,) for the rows (n, C); zeros for none. Its product with another approximates MaxSim.

    Each repetition divides the space into 2**k_sim clusters, and has a part for each: of a query the sum of its rows,
    of a document their mean, or of no rows the first row of the cluster whose bits differ least.
    """
    planes, projections = _projections(rows.shape[1], muvera)
    clusters = 1 << muvera.k_sim
    if not len(rows):
        return np.zeros(muvera.width, np.float32)
    own = (rows @ planes > 0) @ (1 << np.arange(muvera.k_sim))  # (r_reps, n)
    projected = rows @ projections  # (r_reps, n, dim_proj)
    parts = np.zeros((muvera.r_reps, clusters, muvera.dim_proj))
    np.add.at(parts, (np.arange(muvera.r_reps)[:, None], own), projected)
    if not query:
        every, differing = np.arange(clusters), _differing_bits(muvera.k_sim)
        for part, ids, vectors in zip(parts, own, projected, strict=True):
            used, firsts, counts = np.unique(ids, return_index=True, return_counts=True)
            part[used] /= counts[:, None]
            empty = np.setdiff1d(every, used, assume_unique=True)
            part[empty] = vectors[firsts[differing[np.ix_(empty, used)].argmin(axis=1)]]
    encoding: Float32 = parts.ravel().astype(np.float32)
    return encoding
