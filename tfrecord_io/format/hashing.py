"""Numbers that follow from names and seeds alone: where a patient is split, how images are mixed.

>>> draw(["patient:17", "patient:19"]) % np.uint64(5)
array([0, 1], dtype=uint64)
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


def draw(names: Sequence[str], seed: int = 0) -> np.ndarray:
    """Returns a number for each name, uint64 [num_names]: its XXH3-64, mixed with the seed."""
    encoded = (name.encode("utf-8", "surrogateescape") for name in names)
    hashes = np.fromiter((xxhash.xxh3_64_intdigest(name) for name in encoded), np.uint64)
    return splitmix64(hashes + splitmix64(np.array([seed], np.uint64)))


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
