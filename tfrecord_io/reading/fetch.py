"""Records that are not mapped into memory, read ahead of the batches that take them.

The order says which records come next, as far ahead as one likes, and a record lies at a known
place of its shard. So many reads are under way at a time: of single records where the order is
random, of a few megabytes where records are neighbours. While the cache has room, a few threads
also read in long runs what no batch waits for yet, because a store gives long runs at less cost.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import itertools
import logging
import queue
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future

import numpy as np

from tfrecord_io.errors import ChangedError, StoreError
from tfrecord_io.manifest import Manifest, Shard
from tfrecord_io.reading.cache import ABSENT, PRESENT, UNCHECKED, DatasetCache

_log = logging.getLogger(__name__)

#: Reads a part of a shard: returns `length` bytes from `start`.
ReadPart = Callable[[Shard, int, int], bytes]

#: A batch: the places of its examples in the split, int64 [batch], and its records, each uint8
#: [stride]; None instead of the records if all of them are mapped into memory.
Fetched = tuple[np.ndarray, list[np.ndarray] | None]

# Threads that read for batches, and those that fill the cache.
_NUM_READERS = 64
_NUM_FILLERS = 4

_MOST_BYTES_A_READ = 2 << 20
_MOST_BYTES_AHEAD = 64 << 20
_MOST_BATCHES_AHEAD = 256

# Where the readers need more than this share of a processor, single records cost too much of it,
# and more neighbours are read with each; fewer again below the other one. Measured so often.
_BUSY_SHARE, _IDLE_SHARE = 0.25, 0.05
_MEASURE_SECONDS = 0.25

# Stores have retries of their own. These are for what a store does not notice, such as an answer
# that was cut off or garbled.
_NUM_ATTEMPTS = 5
_RETRY_SECONDS = 120.0

_EXIT_SECONDS = 1.0


class ShardIndex:
    """Turns places of examples in a split, shard after shard, into other numbers.

    >>> ShardIndex([2, 3], [100, 200])(np.array([0, 1, 2, 4])).tolist()
    [100, 101, 200, 202]
    """

    def __init__(self, shard_sizes: Sequence[int], firsts: Sequence[int]) -> None:
        """Takes the number of examples of each shard, and the new number of its first one."""
        sizes = np.array(shard_sizes, np.int64)
        self._ends = np.cumsum(sizes)
        self._shifts = np.array(firsts, np.int64) - (self._ends - sizes)

    def __call__(self, examples: np.ndarray) -> np.ndarray:
        """Returns int64 [...], as `examples`."""
        return examples + self._shifts[np.searchsorted(self._ends, examples, side="right")]


class Fetcher:
    """Reads the records of a split ahead, and checks each when it arrives.

    Records have numbers here, in the order of all shards of the manifest.

    Attributes:
        cache: where records are kept; None if they are not.
        mapped: returns records of the cache, uint8 [examples, stride], given their examples.
        states: of all records, see `DatasetCache`.
    """

    def __init__(
        self,
        manifest: Manifest,
        split: str | Sequence[str],
        read: ReadPart,
        cache: DatasetCache | None = None,
    ) -> None:
        """Takes how to read, and what need not be read.

        Args:
            manifest: of the dataset.
            split: name of the split, or of several that follow each other.
            read: reads a part of a shard.
            cache: where records are kept; None to keep none.
        """
        self.layout = manifest.layout
        self.cache = cache
        self.mapped: Callable[[np.ndarray], np.ndarray] | None = None
        self._read = read
        self._shards = manifest.shards
        sizes = [shard.num_examples for shard in self._shards]
        self._ends = np.cumsum(np.array(sizes, np.int64))
        firsts = dict(zip([shard.name for shard in self._shards], self._ends - sizes, strict=True))
        parts = manifest.split(split).shards
        self.num_examples = manifest.split(split).num_examples
        self.numbers = ShardIndex(
            [shard.num_examples for shard in parts], [firsts[shard.name] for shard in parts]
        )
        self.states = np.zeros(sum(sizes), np.uint8) if cache is None else cache.states

    def ahead(
        self, batches: Iterable[np.ndarray], chosen: np.ndarray | None = None, *, fill: bool = False
    ) -> Iterator[Fetched]:
        """Yields batches with their records, which are read before they are asked for.

        Args:
            batches: places of examples in the split, int64 [batch] each.
            chosen: all examples that any batch can hold; None for those of the split.
            fill: whether to fill the cache with these.

        Raises:
            StoreError: if a record cannot be read, or is damaged; it names the shard.
        """
        rest = iter(batches)
        planned: collections.deque[_Plan] = collections.deque()
        bytes_ahead = 0
        work = _Work(self, with_neighbours=fill and chosen is None)
        try:
            for step in itertools.count(1):
                if step % _MOST_BATCHES_AHEAD == 0 and self._holds_all(chosen):
                    yield from ((plan.examples, None) for plan in planned)
                    yield from ((examples, None) for examples in rest)
                    return
                while bytes_ahead < _MOST_BYTES_AHEAD and len(planned) < _MOST_BATCHES_AHEAD:
                    if (examples := next(rest, None)) is None:
                        break
                    planned.append(work.plan(examples))
                    bytes_ahead += planned[-1].num_bytes
                if not planned:
                    return
                plan = planned.popleft()
                bytes_ahead -= plan.num_bytes
                yield plan.examples, work.records(plan)
                if fill:  # now that the first batch is there
                    work.fill(chosen)
                    fill = False
        finally:
            work.close()

    def _holds_all(self, chosen: np.ndarray | None) -> bool:
        examples = np.arange(self.num_examples) if chosen is None else chosen
        return bool((self.states[self.numbers(examples)] == PRESENT).all())

    def with_neighbours(self, numbers: np.ndarray, count: int) -> np.ndarray:
        """Returns absent records and those absent ones of their shards that lie nearby.

        Args:
            numbers: of absent records, sorted, without repetition.
            count: records that are read together: 0..count-1, count..2*count-1, ... of a shard.
        """
        shards = np.searchsorted(self._ends, numbers, side="right")
        firsts = np.append(0, self._ends)[shards]
        groups = firsts + (numbers - firsts) // count * count
        nearby = groups[:, np.newaxis] + np.arange(count)
        nearby = np.unique(nearby[nearby < self._ends[shards, np.newaxis]])
        return nearby[self.states[nearby] == ABSENT]

    def runs(self, numbers: Sequence[int] | np.ndarray) -> list[tuple[int, int]]:
        """Joins neighbours of one shard.

        Args:
            numbers: of records, sorted, without repetition.

        Returns:
            the number of the first record, and how many there are, of each run.
        """
        numbers = np.asarray(numbers, np.int64)
        shards = np.searchsorted(self._ends, numbers, side="right")
        breaks = (np.diff(numbers) != 1) | (np.diff(shards) != 0)
        most = max(1, _MOST_BYTES_A_READ // self.layout.stride)
        return [
            (int(run[first]), len(run[first : first + most]))
            for run in np.split(numbers, np.flatnonzero(breaks) + 1)
            for first in range(0, len(run), most)
        ]

    def read_run(self, first: int, count: int, closed: threading.Event) -> np.ndarray:
        """Reads neighbours of one shard, uint8 [count, stride], and checks and retries."""
        index = int(np.searchsorted(self._ends, first, side="right"))
        shard, stride = self._shards[index], self.layout.stride
        start = first - int(self._ends[index]) + shard.num_examples
        deadline = time.monotonic() + _RETRY_SECONDS
        for attempt in itertools.count(1):
            try:
                content = self._read(shard, start * stride, count * stride)
                if len(content) != count * stride:
                    raise StoreError(f"{shard.name} was cut off while it was read")
                records = np.frombuffer(content, np.uint8).reshape(count, stride)
                damaged = self.layout.find_damaged(records)
                if damaged is None:
                    return records
                raise StoreError(
                    f"{shard.name}: record {start + damaged} does not match its checksum; copy "
                    "the shard again, or build the dataset again with --overwrite"
                )
            except ChangedError:
                raise
            except StoreError as error:
                if attempt == _NUM_ATTEMPTS or time.monotonic() > deadline or closed.is_set():
                    raise
                _log.warning("%s; trying again (%d of %d)", error, attempt, _NUM_ATTEMPTS - 1)
                closed.wait(0.1 * 4 ** (attempt - 1))
        raise AssertionError  # not reached


class _Run:
    """Neighbours of one shard that are being read.

    Attributes:
        first: number of the first record.
        count: how many there are.
        result: uint8 [count, stride]; None if the cache holds them all.
    """

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count
        self.result: Future[np.ndarray | None] = Future()


class _Plan:
    """A batch, with the run of each of its records that is not mapped, by the record's number."""

    def __init__(self, examples: np.ndarray, runs: dict[int, _Run], num_bytes: int) -> None:
        self.examples, self.runs, self.num_bytes = examples, runs, num_bytes


class _Work:
    """The threads of one iteration.

    They are daemons, so that one that waits for a silent server does not keep the program from
    ending.
    """

    def __init__(self, fetcher: Fetcher, *, with_neighbours: bool) -> None:
        self._fetcher = fetcher
        self._with_neighbours = with_neighbours
        self._num_together = 1
        self._busy_seconds = 0.0
        self._measured_at = time.monotonic()
        self._queue: queue.SimpleQueue[_Run | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        # A run exists as long as it is read, or a batch needs it.
        self._runs: weakref.WeakValueDictionary[int, _Run] = weakref.WeakValueDictionary()
        self._fill_lock = threading.Lock()
        atexit.register(self.close, _EXIT_SECONDS)

    def plan(self, examples: np.ndarray) -> _Plan:
        """Starts to read what is absent of a batch."""
        fetcher = self._fetcher
        numbers = fetcher.numbers(examples)
        states = fetcher.states[numbers]
        if (states == UNCHECKED).any():
            states = self._check(examples, numbers, states)
        absent = np.unique(numbers[states == ABSENT])
        known = {number: self._runs.get(number) for number in absent.tolist()}
        runs = {number: run for number, run in known.items() if run is not None}
        if self._choose_together() > 1 and len(runs) < len(absent):
            absent = fetcher.with_neighbours(absent, self._num_together)
        num_bytes = len(absent) * fetcher.layout.stride
        new = [number for number in absent.tolist() if number not in self._runs]
        for first, count in fetcher.runs(new):
            run = _Run(first, count)
            for number in range(first, first + count):
                self._runs[number] = run
                if number in known:
                    runs[number] = run
            self._queue.put(run)
            if len(self._threads) < _NUM_READERS:
                self._start_thread(self._read_queue)
        return _Plan(examples, runs, num_bytes)

    def _choose_together(self) -> int:
        """Returns how many neighbours are read together, by what the readers cost."""
        cache = self._fetcher.cache
        if not self._with_neighbours or cache is None or cache.is_full or not cache.fits:
            self._num_together = 1
            return 1
        seconds = time.monotonic() - self._measured_at
        if seconds > _MEASURE_SECONDS:
            share, self._busy_seconds = self._busy_seconds / seconds, 0.0
            self._measured_at += seconds
            if share > _BUSY_SHARE:
                most = max(1, _MOST_BYTES_A_READ // self._fetcher.layout.stride)
                self._num_together = min(2 * self._num_together, most)
            elif share < _IDLE_SHARE:
                self._num_together = max(1, self._num_together // 2)
        return self._num_together

    def records(self, plan: _Plan) -> list[np.ndarray] | None:
        """Waits for the records of a batch; None if all are mapped."""
        results = {number: run.result.result() for number, run in plan.runs.items()}
        mapped = self._fetcher.mapped
        if mapped is not None and all(result is None for result in results.values()):
            return None
        records = []
        numbers = self._fetcher.numbers(plan.examples).tolist()
        for place, number in enumerate(numbers):
            result = results.get(number)
            if result is not None:
                records.append(result[number - plan.runs[number].first])
            elif mapped is not None:
                records.append(mapped(plan.examples[place : place + 1])[0])
        return records

    def fill(self, chosen: np.ndarray | None) -> None:
        """Starts to read what the cache has room for."""
        runs = self._absent_runs(chosen)
        for _ in range(_NUM_FILLERS):
            self._start_thread(lambda: self._fill(runs))

    def close(self, seconds: float = 0.0) -> None:
        """Ends the threads soon; waits so long for those that read."""
        self._closed.set()
        for _ in self._threads:
            self._queue.put(None)
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        atexit.unregister(self.close)

    def _check(self, examples: np.ndarray, numbers: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Returns the states of records after the check of those that were not checked yet."""
        fetcher = self._fetcher
        assert fetcher.cache is not None
        assert fetcher.mapped is not None
        states = states.copy()
        for place in np.flatnonzero(states == UNCHECKED):
            record = fetcher.mapped(examples[place : place + 1])
            states[place] = PRESENT if fetcher.layout.find_damaged(record) is None else ABSENT
            fetcher.cache.mark(int(numbers[place]), 1, states[place])
        return states

    def _start_thread(self, function: Callable[[], None]) -> None:
        thread = threading.Thread(target=function, name="fetch_ahead", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _read_queue(self) -> None:
        while (run := self._queue.get()) is not None and not self._closed.is_set():
            started = time.thread_time()
            try:
                run.result.set_result(self._read(run.first, run.count))
            except BaseException as error:
                run.result.set_exception(error)
            del run
            self._busy_seconds += time.thread_time() - started

    def _read(self, first: int, count: int) -> np.ndarray | None:
        records = self._fetcher.read_run(first, count, self._closed)
        cache = self._fetcher.cache
        is_kept = cache is not None and cache.keep(first, records) == count
        return None if is_kept else records

    def _fill(self, runs: Iterator[tuple[int, int]]) -> None:
        cache = self._fetcher.cache
        while not (cache is None or cache.is_full or self._closed.is_set()):
            with self._fill_lock:
                run = next(runs, None)
            if run is None:
                return
            # A batch that needs these records will say what is wrong with them.
            with contextlib.suppress(StoreError):
                self._read(*run)

    def _absent_runs(self, chosen: np.ndarray | None) -> Iterator[tuple[int, int]]:
        """Yields runs of absent records that no batch waits for."""
        fetcher = self._fetcher
        total = fetcher.num_examples if chosen is None else len(chosen)
        block_length = max(1, _MOST_BYTES_A_READ // fetcher.layout.stride)
        # Processes that share a cache begin at different places.
        blocks = np.arange(0, total, block_length)
        for first in np.roll(blocks, random.randrange(len(blocks))):
            block = np.arange(first, min(first + block_length, total))
            numbers = np.sort(fetcher.numbers(block if chosen is None else chosen[block]))
            absent = numbers[fetcher.states[numbers] == ABSENT].tolist()
            yield from fetcher.runs([number for number in absent if number not in self._runs])
