"""Audits features: finds scans that may be copies, or have a wrong label, by their neighbours.

A trunk gives a scan and its cropped, mirrored or turned copy similar features, though the two share
no pixel. It gives two scans that look alike similar features, too, so each finding is a hint to
look at both pictures. docs/audit.md has measurements of how many hints are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tfrecord_io.auditing import twins
from tfrecord_io.auditing.columns import encode, encode_labels
from tfrecord_io.auditing.findings import MAX_LISTED, Audit, Finding, good, note, warning
from tfrecord_io.auditing.leak_checks import list_pairs
from tfrecord_io.auditing.twins import ImageReader, NearPair
from tfrecord_io.groups import group_images
from tfrecord_io.manifest import Manifest
from tfrecord_io.printing import counted

#: Number of neighbours that judge a scan's label, and how many of them must agree on another one.
NUM_NEIGHBOURS = 10
MIN_AGREEING = 9

# Number of scans that the rule for copies is expected to select by chance. A pair needs two of
# them, so at most half as many pairs are expected.
_CHANCE_SCANS = 5

# Rows that are compared with all others at once, which takes 300 MB for 100,000 scans.
_ROWS_AT_ONCE = 256


class Neighbours(NamedTuple):
    """The nearest neighbours of each scan among the scans of other patients, the nearest first.

    `rows` is int64 [num_scans, count]; `similarities`, float32 [num_scans, count], are cosines, or
    -inf if other patients have fewer than `count` scans.
    """

    rows: np.ndarray
    similarities: np.ndarray

    @property
    def enough(self) -> np.ndarray:
        """Bool [num_scans], which scans have `NUM_NEIGHBOURS` neighbours."""
        return np.isfinite(self.similarities).sum(axis=1) >= NUM_NEIGHBOURS


def directions(vectors: np.ndarray) -> np.ndarray:
    """Returns the vectors [num_scans, channels] with length 1, so dot products are cosines."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)


def whitened(vectors: np.ndarray) -> np.ndarray:
    """Returns features [num_scans, channels] that vary about equally in all directions.

    Without it, a few directions, such as the brightness of a scan, decide which scans are similar.
    Directions that vary less than the average are enlarged less, because they are mostly noise.
    """
    centred = vectors - vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    covariance = (centred.T @ centred).astype(np.float64) / len(vectors)
    variances, axes = np.linalg.eigh(covariance)
    scales = 1 / np.sqrt(np.maximum(variances, 0) + max(variances.mean(), 1e-30))
    return centred @ (axes * scales).astype(np.float32)


def find_neighbours(vectors: np.ndarray, groups: np.ndarray) -> Neighbours:
    """Finds the `NUM_NEIGHBOURS` most similar scans of other groups by comparing all pairs.

    Time grows with the square of the number of scans; memory does not.

    Args:
        vectors: float32 [num_scans, channels] of length 1, see `directions`.
        groups: int64 [num_scans], the patient of each scan.
    """
    num_scans = len(vectors)
    count = min(NUM_NEIGHBOURS, max(num_scans - 1, 0))
    rows = np.empty((num_scans, count), np.int64)
    similarities = np.empty((num_scans, count), np.float32)
    for first in range(0, num_scans if count else 0, _ROWS_AT_ONCE):
        block = slice(first, first + _ROWS_AT_ONCE)
        cosines = vectors[block] @ vectors.T
        cosines[groups[block, np.newaxis] == groups] = -np.inf
        nearest = np.argpartition(cosines, num_scans - count, axis=1)[:, num_scans - count :]
        values = np.take_along_axis(cosines, nearest, 1)
        order = np.argsort(-values, axis=1, kind="stable")
        rows[block] = np.take_along_axis(nearest, order, 1)
        similarities[block] = np.take_along_axis(values, order, 1)
    return Neighbours(rows, similarities)


def near_copies(nearby: Neighbours) -> list[NearPair]:
    """Returns pairs far nearer to each other than to any other scan, the most striking first.

    A scan's ratio is the distance to its nearest neighbour, divided by that to the second nearest.
    Where scans are spread evenly, the share of scans with a ratio below r is r**m, and m grows with
    the number of dimensions in which the features vary. The median ratio gives m, and m gives the
    ratio below which five of all scans are expected by chance; pairs of which both are below it are
    returned. Source: Facco et al. 2017, "Estimating the intrinsic dimension of datasets by a
    minimal neighborhood information". Scans with fewer than `NUM_NEIGHBOURS` neighbours are left
    out.
    """
    measured = nearby.enough
    if measured.sum() < NUM_NEIGHBOURS:
        return []
    nearest = nearby.rows[:, 0]
    distances = np.maximum(1 - nearby.similarities[:, :2].astype(np.float64), 1e-9)
    median = np.median(distances[measured, 0] / distances[measured, 1])
    dimensions = np.log(2) / -np.log(np.clip(median, 1e-9, 1 - 1e-9))
    limit = min(_CHANCE_SCANS / measured.sum(), 1) ** (1 / dimensions)
    next_distances = np.minimum(distances[:, 1], distances[nearest, 1])
    ratios = np.ones(len(nearest))
    np.divide(distances[:, 0], next_distances, out=ratios, where=measured & measured[nearest])
    scans = np.arange(len(nearest))
    chosen = np.flatnonzero((ratios < limit) & (nearest[nearest] == scans) & (scans < nearest))
    return [
        NearPair(
            row,
            int(nearest[row]),
            float(nearby.similarities[row, 0]),
            f"Similarity {1 - distances[row, 0]:.3f}; the next most similar scan of either has "
            f"{1 - next_distances[row]:.3f}",
        )
        for row in chosen[np.argsort(ratios[chosen], kind="stable")].tolist()
    ]


def doubtful_labels(
    nearby: Neighbours, labels: np.ndarray, label_names: Sequence[str]
) -> list[NearPair]:
    """Returns scans of which nearly all neighbours have one other label, the clearest first."""
    of_neighbours = labels[nearby.rows]
    votes = np.stack([(of_neighbours == label).sum(1) for label in range(len(label_names))], 1)
    other = votes.argmax(1)
    agreeing = votes[np.arange(len(labels)), other]
    is_doubtful = (other != labels) & (agreeing >= MIN_AGREEING) & nearby.enough
    sums = nearby.similarities.sum(1)
    hints = []
    for row in sorted(np.flatnonzero(is_doubtful), key=lambda r: (-agreeing[r], -sums[r], r)):
        place = int((of_neighbours[row] == other[row]).argmax())
        hints.append(
            NearPair(
                int(row),
                int(nearby.rows[row, place]),
                float(nearby.similarities[row, place]),
                f"{agreeing[row]} of the {NUM_NEIGHBOURS} most similar scans of other patients "
                f"are {label_names[other[row]]}, among them the one on the right",
            )
        )
    return hints


def audit_features(directory: Path, dataset: Manifest, everything: pa.Table) -> Audit:
    """Audits a dataset of features; `everything` is what `columns.read_examples` returns."""
    examples, nearest = compare(directory, dataset, everything)
    copies = _check_copies(everything, examples, nearest, dataset)
    labels = _check_labels(examples, nearest, dataset)
    counts = {finding.code: finding.count for finding in (copies, labels)}
    return Audit.of([copies, labels], {"examples": examples.num_rows, **counts})


def compare(
    directory: Path, dataset: Manifest, everything: pa.Table
) -> tuple[pa.Table, Neighbours]:
    """Compares the features of all scans of a dataset; `everything` is from `read_examples`.

    Returns:
        the first example with each picture, because the audit of the images lists those with the
        same pixels; and their neighbours.

    Raises:
        ManifestError, OSError: if the table does not fit the shards.
    """
    _, first_rows = twins.number_pictures(everything)
    examples = everything.take(pa.array(first_rows))
    maps = ImageReader.of_folder(directory, dataset)
    # A scan's features are the means over the positions of its map.
    features = np.empty((examples.num_rows, dataset.image_shape[2]), np.float32)
    for number, place in enumerate(examples.select(["shard", "row"]).to_pylist()):
        features[number] = maps.values(**place).mean(axis=(0, 1), dtype=np.float32)
    vectors = directions(whitened(features))
    return examples, find_neighbours(vectors, group_images(examples).codes)


def _check_copies(
    everything: pa.Table, examples: pa.Table, nearest: Neighbours, dataset: Manifest
) -> Finding:
    hints = near_copies(nearest)
    first, second = np.array([hint[:2] for hint in hints], np.int64).reshape(-1, 2).T
    pictures, _ = twins.number_pictures(everything)
    split, label = encode(everything["split"])[0], encode_labels(everything, dataset.label_kind)[1]
    across = twins.have_different(split, pictures, first, second)
    differ = twins.have_different(label, pictures, first, second)
    side = min(dataset.source["trunk"]["image_shape"][:2])
    if hints and side >= twins.MIN_SIDE:
        # The audit of the images has compared the pixels of the others.
        hashes = twins.hashes_in(examples)
        distances = np.bitwise_count(hashes[first] ^ hashes[second]).sum(axis=1)
        kept = ~(across | differ) | (distances > twins.MAX_DISTANCE)
        hints = [hint for hint, is_kept in zip(hints, kept, strict=True) if is_kept]
        across, differ = across[kept], differ[kept]
    if not hints:
        title = "No two scans stand out as cropped, mirrored or turned copies"
        detail = "No two patients' scans have features that are far nearer to each other than to "
        return good("near_copies", title, f"{detail}those of any other scan.")
    found = warning if len(hints) > _CHANCE_SCANS / 2 else note
    return found(
        "near_copies",
        f"{counted(len(hints), 'pair')} of scans may be cropped, mirrored or turned copies",
        "Their features are far nearer to each other than to those of any other patient's "
        "scan. One or two such pairs are expected by chance, so look at the pictures. "
        f"Across splits: {across.sum():,}. With different "
        f"{dataset.label_kind.plural}: {differ.sum():,}. Copies that the audit of the "
        "images finds are left out.",
        len(hints),
        list_pairs(examples, hints[:MAX_LISTED]),
    )


def _check_labels(examples: pa.Table, nearest: Neighbours, dataset: Manifest) -> Finding:
    if not dataset.label_kind.one_hot:
        title = "Labels were not compared with those of similar scans"
        detail = f"That needs one class for each image, and these have {dataset.label_kind.plural}."
        return note("doubtful_labels", title, detail)
    labels = dataset.label_kind.vectors(examples["label"].to_pylist(), dataset.label_names)
    labels = labels.argmax(1)
    hints = doubtful_labels(nearest, labels, dataset.label_names)
    if not hints:
        return good(
            "doubtful_labels",
            "No label stands out from those of similar scans",
            f"No scan has {MIN_AGREEING} scans of one other class among the "
            f"{NUM_NEIGHBOURS} most similar scans of other patients.",
        )
    return warning(
        "doubtful_labels",
        f"{counted(len(hints), 'label stands', 'labels stand')} out from those of similar scans",
        f"At least {MIN_AGREEING} of the {NUM_NEIGHBOURS} most similar scans of other "
        "patients have one other class. The label may be wrong, or right for an unusual scan.",
        len(hints),
        list_pairs(examples, hints[:MAX_LISTED]),
    )
