"""Numbers that follow from names and seeds alone: where a patient is split, how images are mixed.

>>> draw(hash_names(["patient:17", "patient:19"]), np.array([0], np.uint64)) % np.uint64(5)
array([[0, 1]], dtype=uint64)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

#: Weyl increment of SplitMix64. Source: Steele, Lea and Flood, "Fast splittable pseudorandom number
#: generators" (2014); Vigna, prng.di.unimi.it/splitmix64.c, as are the constants below.
WEYL = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def hash_names(names: Sequence[str]) -> np.ndarray:
    """Returns uint64 [num_names], the XXH3-64 of each name in UTF-8."""
    encoded = (name.encode("utf-8", "surrogateescape") for name in names)
    return np.fromiter((xxhash.xxh3_64_intdigest(name) for name in encoded), np.uint64)


def draw(hashes: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Returns a number for each name and seed, uint64 [num_seeds, num_names].

    It is the name's hash, uint64 [num_names] of `hash_names`, mixed with the seed, uint64
    [num_seeds].
    """
    with np.errstate(over="ignore"):
        return splitmix64(hashes[None, :] + splitmix64(seeds)[:, None])


def splitmix64(state: np.ndarray) -> np.ndarray:
    """Returns a well-mixed uint64 for each uint64 of any shape."""
    return mix(state * np.uint64(WEYL) + np.uint64(WEYL))


def mix(value: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer: a bijection of uint64 in which each bit depends on all others."""
    value = value ^ (value >> np.uint64(30))
    value *= _MIX_1
    value ^= value >> np.uint64(27)
    value *= _MIX_2
    value ^= value >> np.uint64(31)
    return value
