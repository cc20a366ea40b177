"""The random numbers of a training step, in NumPy: those that TensorFlow's generator gives.

A run on JAX needs no TensorFlow, and yet sees the images that a run on TensorFlow sees:
`tf.random.stateless_uniform` and `stateless_gamma` on a CPU are a counter-based generator and
plain arithmetic, which this module repeats. Uniform numbers are equal in every bit. The others go
through logarithms, whose last bit depends on the library.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from train.data import augmentation

# Philox 4x32 with 10 rounds. Source: Salmon et al. 2011, "Parallel random numbers: as easy as
# 1, 2, 3"; TensorFlow's random/philox_random.h.
_NUM_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = np.array([0x9E3779B9, 0xBB67AE85], np.uint32)
# The key by which TensorFlow mixes a seed. Source: stateless_random_ops.cc, GenerateKey.
_SEED_KEY = np.array([0x3EC8F720, 0x02461E29], np.uint32)
# Blocks between the numbers of neighbours. Source: stateless_random_gamma_op.cc.
_BLOCKS_A_GAMMA = 256

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def draw_step(seed: int, step: int, *, batch_size: int, mixup: float) -> np.ndarray:
    """Returns the random numbers of a global batch.

    Args:
        seed: of the run.
        step: counted from 0.
        batch_size: of the global batch.
        mixup: alpha of the Beta distribution of MixUp; 0 for none.

    Returns:
        float32 [batch_size, augmentation.NUM_DRAWS], uniform in 0..1; with `mixup` the last
        number is the share that an example keeps of itself, the larger one of Beta(alpha, alpha).
    """
    key, counter = _mix_seed(seed, step)
    shape = batch_size, augmentation.NUM_DRAWS
    draws = _uniform(key, counter, shape)
    if mixup:
        # Source: Devroye 1986, "Non-Uniform Random Variate Generation", section IX.4.
        first, second = _gamma(key, counter, 2 * batch_size, mixup).reshape(2, -1)
        total = first + second
        kept = np.divide(first, total, out=np.zeros_like(first), where=total > 0)
        draws[:, -1] = np.maximum(kept, 1 - kept)
    return draws


def _mix_seed(seed: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (key uint32 [2], upper half of the counter uint32 [2]) of a step."""
    counter = np.array([seed & 0xFFFFFFFFFFFFFFFF, step], "<u8").view("<u4")
    mixed = _philox(_SEED_KEY, counter[np.newaxis])[0]
    return mixed[:2], mixed[2:]


def _philox(key: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Returns uint32 [blocks, 4], random bits for each counter, uint32 [blocks, 4]."""
    c0, c1, c2, c3 = counters.astype(np.uint32).T
    for _ in range(_NUM_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (second >> _HALF).astype(np.uint32) ^ c1 ^ key[0],
            (second & _LOW).astype(np.uint32),
            (first >> _HALF).astype(np.uint32) ^ c3 ^ key[1],
            (first & _LOW).astype(np.uint32),
        )
        key = key + _KEY_STEPS
    return np.stack([c0, c1, c2, c3], axis=1)


def _blocks(key: np.ndarray, counter: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns uint32 [blocks, 4], the blocks of these numbers, int64 [blocks]."""
    counters = np.empty((len(numbers), 4), np.uint32)
    counters[:, :2] = numbers.astype("<u8").view("<u4").reshape(-1, 2)
    counters[:, 2:] = counter
    return _philox(key, counters)


def _uniform(key: np.ndarray, counter: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    size = shape[0] * shape[1]
    bits = _blocks(key, counter, np.arange(-(-size // 4))).ravel()[:size].reshape(shape)
    # The mantissa of a number in 1..2.
    return (bits & np.uint32(0x7FFFFF) | np.uint32(127 << 23)).view(np.float32) - np.float32(1)


def _uniform_pairs(bits: np.ndarray) -> np.ndarray:
    """Returns float64 [blocks, 2] in 0..1 from uint32 [blocks, 4]."""
    upper, lower = bits[:, ::2].astype(np.uint64), bits[:, 1::2].astype(np.uint64)
    mantissa = (upper & np.uint64(0xFFFFF)) << _HALF | lower
    return (mantissa | np.uint64(1023 << 52)).view(np.float64) - 1


def _normal_pairs(bits: np.ndarray) -> np.ndarray:
    """Returns normally distributed float64 [blocks, 2] from uint32 [blocks, 4] (Box, Muller)."""
    uniform = _uniform_pairs(bits)
    radius = np.sqrt(-2 * np.log(np.maximum(uniform[:, 0], 1e-7)))
    angle = 2 * np.pi * uniform[:, 1]
    return np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=1)


class _Pairs:
    """Numbers that are made two at a time, and taken one at a time, the second one first."""

    def __init__(self, make: Callable[[np.ndarray], np.ndarray], size: int) -> None:
        self._make = make
        self._values = np.zeros((size, 2))
        self._left = np.zeros(size, np.int64)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Returns float64 [rows], the next number of each of these rows."""
        empty = rows[self._left[rows] == 0]
        if empty.size:
            self._values[empty] = self._make(empty)
            self._left[empty] = 2
        self._left[rows] -= 1
        return self._values[rows, self._left[rows]]


def _gamma(key: np.ndarray, counter: np.ndarray, size: int, alpha: float) -> np.ndarray:
    """Returns float32 [size] of Gamma(alpha, 1).

    Source: Marsaglia and Tsang 2000, "A simple method for generating gamma variables".
    """
    alpha = float(np.float32(alpha))
    result = np.empty(size)
    if alpha == 1:
        bits = _blocks(key, counter, _BLOCKS_A_GAMMA * np.arange(size))
        return (-np.log1p(-_uniform_pairs(bits)[:, 1])).astype(np.float32)
    num_used = np.zeros(size, np.int64)

    def next_bits(rows: np.ndarray) -> np.ndarray:
        bits = _blocks(key, counter, _BLOCKS_A_GAMMA * rows + num_used[rows])
        num_used[rows] += 1
        return bits

    normal = _Pairs(lambda rows: _normal_pairs(next_bits(rows)), size)
    uniform = _Pairs(lambda rows: _uniform_pairs(next_bits(rows)), size)
    d = alpha + (2 / 3 if alpha < 1 else -1 / 3)
    c = 1 / 3 / np.sqrt(d)
    rows = np.arange(size)
    while rows.size:
        x = normal.take(rows)
        v = (1 + c * x) ** 3
        tried = rows[v > 0]
        x, v = x[v > 0], v[v > 0]
        u = uniform.take(tried)
        with np.errstate(divide="ignore"):
            is_taken = np.log(u) < 0.5 * x**2 + d * (1 - v + np.log(v))
        is_taken |= u < 1 - 0.0331 * x**4
        taken = tried[is_taken]
        result[taken] = d * v[is_taken]
        if alpha < 1:
            result[taken] *= uniform.take(taken) ** (1 / alpha)
        rows = np.setdiff1d(rows, taken)
    return np.maximum(result.astype(np.float32), np.finfo(np.float32).tiny)
