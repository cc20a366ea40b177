"""Records that are not mapped into memory, read ahead of the batches that take them.

The order says which records come next, and where they lie in their shards. So many reads are under
way at a time. While the cache has room, a few threads also read in runs what no batch waits for
yet, because a store gives runs at less cost.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import itertools
import queue
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import NamedTuple

import numpy as np

from tfrecord_io.format.manifest import Shard
from tfrecord_io.reading.cache import ABSENT, PRESENT, UNCHECKED, DatasetCache
from tfrecord_io.reading.records import BufferPool, Records, Rows
from tfrecord_io.stores.remote import StoredFile, patiently
from tfrecord_io.terminal.errors import StoreError

#: A batch: what holds its records, and their rows there, int64 [batch].
Fetched = tuple[Records, np.ndarray]

# Threads that read for batches, and those that fill the cache.
_NUM_READERS = 64
_NUM_FILLERS = 12

# Longer reads cost more: their memory is taken from the system, and given back, each time.
_MOST_BYTES_A_READ = 512 << 10
# With a record that a batch waits for, so many bytes of neighbours are read while all of them will
# be kept: single records cost the most of a processor. The first batch does not wait for others.
_BYTES_TOGETHER = 256 << 10
# Batches are planned ahead up to so many bytes, but at least two. They are mostly read record by
# record, which costs more than the runs that fill the cache: more would be slower.
_MOST_BYTES_AHEAD = 16 << 20
_LEAST_BATCHES_AHEAD, _MOST_BATCHES_AHEAD = 2, 256

# Batches after which the states of all wanted records are looked at again.
_STEPS_A_CHECK = 32

_EXIT_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, eq=False)
class Unmapped:
    """Records that are not mapped into memory: where they are read from, and kept.

    Attributes:
        shards: those that are read; their records, without gaps, are the rows.
        records: those that are mapped into memory, with holes.
    """

    shards: Sequence[Shard]
    files: Mapping[str, StoredFile]
    records: Records
    cache: DatasetCache | None = None

    def ahead(self, batches: Iterator[np.ndarray], wanted: np.ndarray) -> Iterator[Fetched]:
        """Yields what `MappedDataset.until_mapped` does; takes sorted rows in place of examples."""
        planned: collections.deque[_Plan] = collections.deque()
        bytes_ahead = 0
        work = _Work(self, wanted)
        try:
            for step in itertools.count():
                if step % _STEPS_A_CHECK == 0 and work.is_done():
                    yield from ((self.records, plan.rows) for plan in planned)
                    return
                while len(planned) < _LEAST_BATCHES_AHEAD or (
                    bytes_ahead < _MOST_BYTES_AHEAD and len(planned) < _MOST_BATCHES_AHEAD
                ):
                    if (rows := next(batches, None)) is None:
                        break
                    planned.append(work.plan(rows))
                    bytes_ahead += planned[-1].num_bytes
                if not planned:
                    return
                plan = planned.popleft()
                bytes_ahead -= plan.num_bytes
                yield work.take(plan)
                if step == 0:  # now that the first batch is there
                    work.fill()
        finally:
            work.close()
            work.has_ended.set()


@dataclasses.dataclass(frozen=True, eq=False)
class _Run:
    """Neighbours of one shard, from a row on, that are being read.

    The result is uint8 [count, stride], or None if the cache holds them all.
    """

    first: int
    count: int
    result: Future[np.ndarray | None] = dataclasses.field(default_factory=Future)


class _Plan(NamedTuple):
    """A batch, with the run of each of its rows that is not mapped."""

    rows: np.ndarray
    runs: dict[int, _Run]
    num_bytes: int


class _Work:
    """The reads of one iteration, and their threads.

    These are daemons, so that one that waits for a silent server does not keep the program from
    ending.
    """

    def __init__(self, source: Unmapped, wanted: np.ndarray) -> None:
        self._source, self._wanted = source, wanted
        self._cache, self._layout = source.cache, source.records.layout
        sizes = [shard.num_examples for shard in source.shards]
        self._rows = Rows(sizes)
        self._states = self._cache.states if self._cache else np.zeros(sum(sizes), np.uint8)
        self._most_together = max(1, _MOST_BYTES_A_READ // self._layout.stride)
        self._queue: queue.SimpleQueue[_Run | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._is_filling = False
        self.has_ended = threading.Event()
        # A run exists as long as it is read, or a batch needs it.
        self._runs: weakref.WeakValueDictionary[int, _Run] = weakref.WeakValueDictionary()
        self._fill_lock = threading.Lock()
        atexit.register(self._end)

    def is_done(self) -> bool:
        """Returns whether all wanted records are mapped."""
        states = self._states[self._wanted]
        return states.size > 0 and bool((states == PRESENT).all())

    def plan(self, rows: np.ndarray) -> _Plan:
        """Starts to read what is absent of a batch."""
        states = self._checked(rows)
        absent = np.unique(rows[states == ABSENT])
        running = {row: self._runs.get(row) for row in absent.tolist()}
        runs = {row: run for row, run in running.items() if run is not None}
        cache, together = self._cache, max(1, _BYTES_TOGETHER // self._layout.stride)
        is_kept = self._is_filling and cache is not None and cache.fits and not cache.is_full
        if len(runs) < len(absent) and is_kept:
            groups = np.unique(np.searchsorted(self._wanted, absent) // together)
            absent = np.concatenate([self._absent(group, together) for group in groups])
        for run in self._join(absent):
            for row in range(run.first, run.first + run.count):
                self._runs[row] = run
                if row in running:
                    runs[row] = run
            self._queue.put(run)
            if len(self._threads) < _NUM_READERS:
                self._start_thread(self._read_queue)
        return _Plan(rows, runs, len(absent) * self._layout.stride)

    def take(self, plan: _Plan) -> Fetched:
        """Waits for the records of a batch; copies them together unless all are mapped."""
        results = {row: self._result(run) for row, run in plan.runs.items()}
        mapped = self._source.records
        if all(result is None for result in results.values()):
            return mapped, plan.rows
        pool = BufferPool((len(plan.rows) + 1) * self._layout.stride)
        found = Records(self._layout, pool.take())
        for record, row in zip(found.array, plan.rows.tolist(), strict=True):
            result = results.get(row)
            record[:] = mapped.array[row] if result is None else result[row - plan.runs[row].first]
        return found, np.arange(len(plan.rows))

    def _result(self, run: _Run) -> np.ndarray | None:
        """Waits for a run; raises StoreError once the threads have been ended."""
        while not run.result.done():
            wait([run.result], _EXIT_SECONDS / 10)
            # TensorFlow asks in a thread of its own, for which the end of the program would wait.
            if self._closed.is_set() and not run.result.done():
                raise StoreError("the program ends, so no more records are read")
        return run.result.result()

    def fill(self) -> None:
        """Starts to read what the cache has room for."""
        if not self._wanted.size or self._cache is None:
            return
        self._is_filling = True
        # Processes that share a cache begin at different places.
        num_groups = -(-len(self._wanted) // self._most_together)
        first = random.randrange(num_groups)
        groups = itertools.chain(range(first, num_groups), range(first))
        for _ in range(_NUM_FILLERS):
            self._start_thread(lambda: self._fill(groups))

    def close(self, seconds: float = 0.0) -> None:
        """Ends the threads soon; waits so long for those that read."""
        self._closed.set()
        for _ in range(_NUM_READERS):
            self._queue.put(None)
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        atexit.unregister(self._end)

    def _end(self) -> None:
        """Ends the iteration with the program.

        TensorFlow reads in threads of its own, which it cannot end while they wait for Python, and
        it does not say when they have ended.
        """
        self.close(_EXIT_SECONDS)
        self.has_ended.wait(_EXIT_SECONDS)
        time.sleep(_EXIT_SECONDS / 10)  # for what it does between the last read and its end

    def _checked(self, rows: np.ndarray) -> np.ndarray:
        """Returns the states of records after the check of those that were not checked yet."""
        states = self._states[rows]
        for place in np.flatnonzero(states == UNCHECKED):
            row = int(rows[place])
            damaged = self._layout.find_damaged(self._source.records.array[row : row + 1])
            states[place] = PRESENT if damaged is None else ABSENT
            if self._cache is not None:
                self._cache.mark(row, 1, states[place])
        return states

    def _absent(self, group: int, count: int) -> np.ndarray:
        """Returns the absent rows of a group of so many wanted ones."""
        rows = self._wanted[group * count : (group + 1) * count]
        return rows[self._states[rows] == ABSENT]

    def _join(self, absent: np.ndarray) -> list[_Run]:
        """Joins neighbours of one shard, of sorted rows, without those that are being read."""
        rows = np.array([row for row in absent.tolist() if row not in self._runs], np.int64)
        breaks = (np.diff(rows) != 1) | (np.diff(self._rows.shards(rows)) != 0)
        return [
            _Run(int(run[first]), len(run[first : first + self._most_together]))
            for run in np.split(rows, np.flatnonzero(breaks) + 1)
            for first in range(0, len(run), self._most_together)
        ]

    def _start_thread(self, function: Callable[[], None]) -> None:
        thread = threading.Thread(target=function, name="fetch_ahead", daemon=True)
        thread.start()
        self._threads.append(thread)  # a thread that Ctrl-C kept from starting cannot be joined

    def _read_queue(self) -> None:
        while (run := self._queue.get()) is not None and not self._closed.is_set():
            try:
                run.result.set_result(self._read(run))
            except BaseException as error:
                run.result.set_exception(error)
            del run

    def _fill(self, groups: Iterator[int]) -> None:
        """Reads groups of absent records that no batch waits for."""
        assert self._cache is not None
        while not self._cache.is_full and not self._closed.is_set():
            with self._fill_lock:
                group = next(groups, None)
            if group is None:
                return
            for run in self._join(self._absent(group, self._most_together)):
                # A batch that needs these records will say what is wrong with them.
                with contextlib.suppress(StoreError):
                    self._read(run)

    def _read(self, run: _Run) -> np.ndarray | None:
        """Reads and checks a run, and keeps it if it can; returns its result."""
        number, start = self._rows.find(run.first)
        shard, stride = self._source.shards[number], self._layout.stride

        def read() -> np.ndarray:
            content = self._source.files[shard.name].read_once(start * stride, run.count * stride)
            array = np.frombuffer(content, np.uint8)
            if len(array) != run.count * stride:
                raise StoreError(f"{shard.name} was cut off while it was read")
            records = array.reshape(run.count, stride)
            damaged = self._layout.find_damaged(records)
            if damaged is not None:
                raise StoreError(
                    f"{shard.name}: record {start + damaged} does not match its checksum; copy "
                    "the shard again, or build the dataset again with --overwrite"
                )
            return records

        records = patiently(read, self._closed)
        is_kept = self._cache is not None and self._cache.keep(run.first, records)
        return None if is_kept else records
