"""The order of examples: which ones batch k holds, for any k at once.

>>> [batch.tolist() for batch in BatchOrder(num_examples=5, batch_size=2, seed=7)]
[[0, 4], [1, 3], [2]]

An epoch's order is a keyed bijection of 0..num_examples-1, computed where it is asked for rather
than stored. So step one million costs what step zero costs, memory does not grow with the data,
and any two examples can meet in a batch.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import numbers
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from tfrecord_io.format.hashing import WEYL, mix, splitmix64

# An odd factor, unrelated to the constants above, for the value of a half. The number of the round
# is multiplied by WEYL, so that the two do not cancel each other.
_SPREAD = np.uint64(0xD1342543DE82EF95)

# Four rounds make a Feistel network a pseudorandom permutation of a large set (Luby and Rackoff
# 1988). Small ones need more: a chi-squared test finds all 720 orders of six examples equally
# likely with 16 rounds, but not with 12.
_NUM_ROUNDS = 8
_NUM_ROUNDS_SMALL = 24
_SMALL = 4096

_U64 = 0xFFFFFFFFFFFFFFFF

#: The order is computed for this many examples at once, about a millisecond's work.
EXAMPLES_AT_ONCE = 8192

_TYPES: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool, np.bool_), "True or False"),
    int: ((numbers.Integral,), "a whole number"),
    float: ((numbers.Real,), "a number"),
}

# Positions of an endless order, a number that a batch may still be added to.
_ENDLESS = 1 << 62

# Keras takes a first batch to build the model, and prefetching takes more.
_MAX_LOOK = 16

Batch = TypeVar("Batch")


def permute(index: np.ndarray, num_examples: int, *, seed: int, epoch: np.ndarray) -> np.ndarray:
    """Returns where the permutation of a seed and an epoch sends each index in 0..num_examples-1.

    Index, epochs and result are int64 [n]. A Feistel network over Z_a x Z_b with a * b just above
    `num_examples`, walked on until the value is in range. Source: Black and Rogaway, "Ciphers with
    arbitrary finite domains" (2002), methods "generalized Feistel" and "cycle walking".
    """
    a = math.isqrt(num_examples - 1) + 1
    b = -(-num_examples // a)
    # Unrelated numbers for neighbouring seeds and neighbouring epochs.
    start = splitmix64(np.array([int(seed) & _U64], np.uint64))
    key = mix(start + epoch.astype(np.uint64) * np.uint64(WEYL))
    num_rounds = _NUM_ROUNDS if num_examples >= _SMALL else _NUM_ROUNDS_SMALL
    value = _feistel(index.astype(np.uint64), a, b, key, num_rounds)
    (outside,) = np.nonzero(value >= num_examples)
    while outside.size:
        value[outside] = _feistel(value[outside], a, b, key[outside], num_rounds)
        outside = outside[value[outside] >= num_examples]
    if num_examples > 1:
        # Shifts of an odd number of values are even permutations, so odd ones would be rarer. So
        # one bit of the key decides whether the values 0 and 1 are swapped.
        value ^= (value < 2) & (key & np.uint64(1))
    return value.astype(np.int64)


def _feistel(value: np.ndarray, a: int, b: int, key: np.ndarray, num_rounds: int) -> np.ndarray:
    """A bijection of 0..a*b-1: each half in turn is shifted by a hash of the other."""
    upper, lower = np.divmod(value, np.uint64(a))
    halves = [lower, upper]
    sizes = np.uint64(a), np.uint64(b)
    for i in range(num_rounds):
        moved, kept = i % 2, 1 - i % 2
        shift = mix(halves[kept] * _SPREAD + (key + np.uint64(i * WEYL & _U64)))
        # The hash's upper 32 bits, scaled to 0..size-1; faster than a remainder.
        shift = ((shift >> np.uint64(32)) * sizes[moved]) >> np.uint64(32)
        total = halves[moved] + shift
        # The remainder of a sum below 2 * size: if the sum is below size, the unsigned difference
        # wraps around to a huge number, and the minimum is the sum.
        halves[moved] = np.minimum(total, total - sizes[moved])
    return halves[0] + np.uint64(a) * halves[1]


def check_type(name: str, value: object, kind: type[bool | int | float]) -> None:
    """Raises TypeError unless a value has a type, or NumPy's form of it; a bool is not an int."""
    types, expected = _TYPES[kind]
    is_bool = isinstance(value, (bool, np.bool_))
    if is_bool != (kind is bool) or not isinstance(value, types):
        raise TypeError(f"{name} must be {expected}, received {value!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchOrder:
    """Which of `num_examples` each batch holds; its other attributes are those of `make_batches`.

    The examples of epoch 0, 1, 2, ... follow each other without a gap; global batch k of a loop is
    rows [k * batch_size, (k + 1) * batch_size) of its epochs. So all but the very last are full,
    and training can go on with another number of replicas in the same global order. As a sampler
    of a PyTorch DataLoader with `batch_size=None` it yields its batches.

    Steps are counted over all loops: the first loop begins at `start_step`, and each new loop at
    the first step of the epoch after the loop before. A loop counts from its 16th batch on, or its
    last, so that a look at the first batch changes nothing.

    Raises TypeError or ValueError if a value has a wrong type, is out of range, or contradicts
    another.
    """

    num_examples: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    epochs: int | None = 1
    drop_remainder: bool = False
    pad_remainder: bool = False
    num_replicas: int = 1
    replica_index: int = 0
    start_step: int = 0
    _next_steps: list[int] = dataclasses.field(
        default_factory=lambda: [0], init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.init and (value is not None or field.name != "epochs"):
                check_type(field.name, value, bool if field.type == "bool" else int)
        limits = {"num_examples": 1, "batch_size": 1, "num_replicas": 1, "epochs": 1}
        for name, least in {**limits, "start_step": 0}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, received {value}")
        if self.drop_remainder and self.pad_remainder:
            raise ValueError("drop_remainder and pad_remainder exclude each other; choose one")
        if not 0 <= self.replica_index < self.num_replicas:
            most = self.num_replicas - 1
            raise ValueError(f"replica_index must be in 0..{most}, received {self.replica_index}")
        if self.batch_size % self.num_replicas:
            raise ValueError(
                f"batch_size is global, and received {self.batch_size}, which {self.num_replicas} "
                "replicas cannot share equally"
            )
        self._next_steps[0] = self.start_step

    @property
    def replica_batch_size(self) -> int:
        """Examples of a full batch that this replica gets."""
        return self.batch_size // self.num_replicas

    @property
    def num_positions(self) -> int:
        """Examples of a loop, or as many of an endless one as can be counted."""
        if self.epochs is None:
            return _ENDLESS
        length = self.epochs * self.num_examples
        return length - length % self.batch_size if self.drop_remainder else length

    @property
    def num_full_steps(self) -> int:
        """Full batches of a loop, with fillers or without; a last one may be shorter."""
        fillers = self.batch_size - 1 if self.pad_remainder else 0
        return (self.num_positions + fillers) // self.batch_size

    @property
    def num_steps(self) -> int | None:
        """Number of batches of a loop; None if endless."""
        return None if self.epochs is None else -(-self.num_positions // self.batch_size)

    def next_loop(self) -> int:
        """Returns the step at which a loop that starts now begins."""
        return self._next_steps[0]

    def end_of_loop(self, first_step: int) -> int:
        """Returns the step at which the loop after the one from a step on begins."""
        if not self.num_steps:
            return first_step + -(-self.num_examples // self.batch_size)
        return first_step - first_step % self.num_steps + self.num_steps

    def num_looks(self, first_step: int) -> int:
        """Returns the number of batches with which a loop from a step on counts."""
        return min(_MAX_LOOK, self.end_of_loop(first_step) - first_step)

    def count_loop(self, first_step: int) -> None:
        """Lets later loops begin after the one from a step on."""
        self._next_steps[0] = max(self._next_steps[0], self.end_of_loop(first_step))

    def counted(self, first_step: int, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yields the batches of the loop from a step on, and counts it when it is time to."""
        for number, batch in enumerate(batches, 1):
            if number == self.num_looks(first_step):
                self.count_loop(first_step)
            yield batch

    def examples_at(self, position: np.ndarray) -> np.ndarray:
        """Returns int64 [...], as `position`: the examples there in the sequence of epochs."""
        epoch, index = np.divmod(np.asarray(position, np.int64), self.num_examples)
        if not self.shuffle:
            return index
        permuted = permute(index.ravel(), self.num_examples, seed=self.seed, epoch=epoch.ravel())
        return permuted.reshape(index.shape)

    def weights(self, step: int) -> np.ndarray:
        """Returns float32 [examples of the share]: 1, or 0 for a filler of `pad_remainder`."""
        step %= self.num_steps or _ENDLESS
        return (self._positions(step, step + 1)[0] < self.num_positions).astype(np.float32)

    def _positions(self, step: int, last: int) -> np.ndarray:
        """Returns int64 [steps, examples of the share], before step `last`; a short batch alone."""
        is_full = step < self.num_full_steps
        size = self.batch_size if is_full else self.num_positions % self.batch_size
        share = np.array([self.replica_index, self.replica_index + 1]) * size // self.num_replicas
        steps = np.arange(step, last, dtype=np.int64)
        return steps[:, np.newaxis] * self.batch_size + np.arange(*share)

    def parts(
        self, first_step: int = 0, most_examples: int = EXAMPLES_AT_ONCE
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields this replica's batches of the loop from a step on, many at once, at least one.

        Yields:
            (examples, weights): int64 and float32 [steps, examples of the share]. A last batch
            that is not full comes alone, in shares that differ by at most one, so one may be empty.
            The weight of an example is 1, that of a filler of `pad_remainder` 0.
        """
        num_together = max(1, most_examples // self.replica_batch_size)
        loop, step = divmod(first_step, self.num_steps or _ENDLESS)
        before = loop * self.num_examples * (self.epochs or 0)
        while self.num_steps is None or step < self.num_steps:
            last = min(step + num_together, max(self.num_full_steps, step + 1))
            positions = self._positions(step, last)
            examples = self.examples_at(before + np.minimum(positions, self.num_positions - 1))
            yield examples, (positions < self.num_positions).astype(np.float32)
            step = last

    def __iter__(self) -> Iterator[np.ndarray]:
        first = self.next_loop()
        batches = itertools.chain.from_iterable(examples for examples, _ in self.parts(first))
        yield from self.counted(first, batches)

    def __len__(self) -> int:
        """Returns the number of batches of a whole loop; raises TypeError if it is endless."""
        if self.num_steps is None:
            raise TypeError("an endless order has no length")
        return self.num_steps
