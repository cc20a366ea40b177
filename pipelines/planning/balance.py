"""New splits that meet their shares: a hash of a group's name and a seed decides its split.

>>> from tfrecord_io.format.hashing import hash_names
>>> positions(hash_names(["patient:17", "patient:18"]), np.array([0], np.uint64)).round(2)
array([[0.02, 0.39]])

Bounds at the wanted shares turn a position into a split, so the shares are met only by chance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelines import errors
from tfrecord_io.format.groups import plural_unit
from tfrecord_io.format.hashing import draw
from tfrecord_io.terminal.printing import many

# Limits of the search for a seed: the number of patients times seeds, about two seconds, and the
# number of seeds. With a few thousand patients in four classes, about one seed in thousands meets
# all fractions within one percentage point.
_MAX_PLACES = 50_000_000
_MAX_SEEDS = 10_000
_SEEDS_AT_ONCE = 20


def chosen_splits(hashes: np.ndarray, shares: np.ndarray, seed: int) -> np.ndarray:
    """Returns the number of each group's split, int64 [num_groups]."""
    places = positions(hashes, np.array([seed], np.uint64))[0]
    return np.searchsorted(np.cumsum(shares)[:-1], places, "right")


def positions(hashes: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Returns a position in [0, 1) for each group and seed, float64 [num_seeds, num_groups].

    A position is the upper 53 bits of `hashing.draw(hashes, seeds)`, divided by 2^53.
    """
    return (draw(hashes, seeds) >> np.uint64(11)).astype(np.float64) / 2.0**53


def best_seed(hashes: np.ndarray, counts: np.ndarray, shares: np.ndarray) -> int:
    """Returns the seed with the smallest error of the share, taken at its worst class and split."""
    bounds = np.cumsum(shares)
    totals = np.maximum(counts.sum(0), 1)
    best_seed, best_error = 0, np.inf
    num_seeds = min(_MAX_SEEDS, max(_MAX_PLACES // len(hashes), _SEEDS_AT_ONCE))
    for start in range(0, num_seeds, _SEEDS_AT_ONCE):
        seeds = np.arange(start, start + _SEEDS_AT_ONCE, dtype=np.uint64)
        places = positions(hashes, seeds)
        # One matrix product per bound gives the cumulative counts; their differences follow.
        below = [(places < bound).astype(np.float64) @ counts for bound in bounds[:-1]]
        edges = np.stack([np.zeros_like(below[0]), *below, np.tile(totals, (len(seeds), 1))], 1)
        share = np.diff(edges, axis=1) / totals
        error = np.abs(share - shares[None, :, None]).max((1, 2))
        error += (share.sum(2) == 0).any(1)  # a split without an image is the worst
        if error.min() < best_error:
            best_seed, best_error = int(seeds[error.argmin()]), float(error.min())
    return best_seed


def describe(
    names: Sequence[str],
    shares: np.ndarray,
    achieved: np.ndarray,
    num_groups: int,
    unit: str,
    wanted_seed: int | None,
    seed: int,
) -> str:
    """Returns how well the splits meet their shares.

    Raises:
        errors.UserError: if a split has no image.
    """
    in_split = achieved.sum(1)
    rows = list(zip(names, shares, in_split / in_split.sum(), strict=True))
    if empty := [name for name, _, share in rows if share == 0]:
        wanted = ", ".join(f"{name}={share:.4g}" for name, share, _ in rows)
        few = many(num_groups, unit, plural_unit(unit))
        raise errors.UserError(
            f"{', '.join(empty)} would get no image: {few} too few for {wanted} with seed {seed}; "
            "choose other --split_fractions, or --split_seed auto"
        )
    parts = ", ".join(f"{name} {share:.1%} (wanted {wanted:.1%})" for name, wanted, share in rows)
    by_class = achieved / np.maximum(achieved.sum(0), 1)
    worst = np.abs(by_class - shares[:, None]).max()
    text = f"split by {unit} with seed {seed}: {parts}"
    if worst > 0.01:
        of_class = f"the share of a class is up to {100 * worst:.1f} points off"
        text += f"; {of_class}, because {plural_unit(unit)} stay whole"
    if wanted_seed is None:
        return f"{text}. Use --split_seed {seed} from now on, so that no patient changes split"
    advice = ". --split_seed auto finds a seed that comes closer" if worst > 0.01 else ""
    return text + advice
