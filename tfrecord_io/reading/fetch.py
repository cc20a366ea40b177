"""Records that are not mapped into memory, read ahead of the batches that take them.

The order says which records come next, and where they lie in their shards. So many reads are under
way at a time. While the cache has room, the absent neighbours of a record are read with it: they
will all be wanted, and a store gives them at less cost together.
"""

from __future__ import annotations

import atexit
import collections
import dataclasses
import itertools
import queue
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import NamedTuple

import numpy as np

from tfrecord_io.format.manifest import Shard
from tfrecord_io.reading.cache import ABSENT, PRESENT, DatasetCache
from tfrecord_io.reading.records import BufferPool, Records, Rows
from tfrecord_io.stores.remote import StoredFile, patiently
from tfrecord_io.terminal.errors import StoreError

#: A batch: what holds its records, and their rows there, int64 [batch].
Fetched = tuple[Records, np.ndarray]

_NUM_READERS = 64

# Longer reads cost more: their memory is taken from the system, and given back, each time.
_BYTES_A_READ = 256 << 10
# Batches are planned ahead up to so many bytes, but at least two.
_MOST_BYTES_AHEAD = 16 << 20
_LEAST_BATCHES_AHEAD, _MOST_BATCHES_AHEAD = 2, 256

# Batches after which the states of all wanted records are looked at again.
_STEPS_A_CHECK = 32

# At the end of the program: for threads that read, and between looks at whether it has come.
_EXIT_SECONDS, _LOOK_SECONDS = 1.0, 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class Unmapped:
    """Records that are not mapped into memory: where they are read from, and kept.

    Attributes:
        shards: those that are read; their records, without gaps, are the rows.
        records: those that are mapped into memory, with holes.
        checked: bool [rows], whether this process has compared a record with its checksums.
    """

    shards: Sequence[Shard]
    files: Mapping[str, StoredFile]
    records: Records
    checked: np.ndarray
    cache: DatasetCache | None = None

    def ahead(self, batches: Iterator[np.ndarray], wanted: np.ndarray) -> Iterator[Fetched]:
        """Yields what `MappedDataset.until_mapped` does; takes sorted rows in place of examples."""
        work, planned = _Work(self, wanted), collections.deque[_Plan]()
        try:
            for step in itertools.count():
                is_done = step % _STEPS_A_CHECK == 0 and work.is_done()
                if is_done or (rows := next(batches, None)) is None:
                    break
                planned.append(work.plan(rows, alone=step == 0))
                while len(planned) > _LEAST_BATCHES_AHEAD and (
                    len(planned) > _MOST_BATCHES_AHEAD
                    or sum(plan.num_bytes for plan in planned) > _MOST_BYTES_AHEAD
                ):
                    yield work.take(planned.popleft())
            while planned:
                yield work.take(planned.popleft())
        finally:
            work.close()


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
    """The reads of one iteration, by daemons: no silent server keeps the program from ending."""

    def __init__(self, source: Unmapped, wanted: np.ndarray) -> None:
        self._source, self._wanted = source, wanted
        self._cache, self._layout = source.cache, source.records.layout
        sizes = [shard.num_examples for shard in source.shards]
        self._rows = Rows(sizes)
        self._states = self._cache.states if self._cache else np.zeros(sum(sizes), np.uint8)
        self._most_together = max(1, _BYTES_A_READ // self._layout.stride)
        self._queue: queue.SimpleQueue[_Run | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        # A run exists as long as it is read, or a batch needs it.
        self._runs: weakref.WeakValueDictionary[int, _Run] = weakref.WeakValueDictionary()
        atexit.register(self._end)

    def is_done(self) -> bool:
        """Returns whether all wanted records are mapped and checked."""
        wanted = self._wanted
        is_ready = (self._states[wanted] == PRESENT) & self._source.checked[wanted]
        return wanted.size > 0 and bool(is_ready.all())

    def plan(self, rows: np.ndarray, *, alone: bool) -> _Plan:
        """Starts to read what is absent of a batch; `alone` is one that waits for nothing else."""
        absent = np.unique(rows[self._checked(rows) == ABSENT])
        # Kept in a variable, because `_runs` holds weak references.
        runs = {row: run for row in absent.tolist() if (run := self._runs.get(row))}
        if len(runs) < len(absent) and not alone:
            absent = self._with_neighbours(absent)
        for run in self._join(absent):
            rows_of_run = range(run.first, run.first + run.count)
            self._runs.update(dict.fromkeys(rows_of_run, run))
            runs.update(dict.fromkeys(rows_of_run, run))
            self._queue.put(run)
            if len(self._threads) < _NUM_READERS:
                thread = threading.Thread(target=self._read_queue, name="fetch_ahead", daemon=True)
                thread.start()
                self._threads.append(thread)  # one that Ctrl-C kept from starting cannot be joined
        needed = {row: runs[row] for row in rows.tolist() if row in runs}
        return _Plan(rows, needed, len(absent) * self._layout.stride)

    def take(self, plan: _Plan) -> Fetched:
        """Waits for the records of a batch; copies them together unless all are mapped."""
        results = {row: self._result(run) for row, run in plan.runs.items()}
        mapped = self._source.records
        if all(result is None for result in results.values()):
            return mapped, plan.rows
        memory = BufferPool((len(plan.rows) + 1) * self._layout.stride).take()
        found = Records(self._layout, memory)
        for record, row in zip(found.array, plan.rows.tolist(), strict=True):
            result = results.get(row)
            record[:] = mapped.array[row] if result is None else result[row - plan.runs[row].first]
        return found, np.arange(len(plan.rows))

    def _result(self, run: _Run) -> np.ndarray | None:
        """Waits for a run; raises StoreError once the program ends."""
        while not run.result.done():
            wait([run.result], _LOOK_SECONDS)
            if self._closed.is_set() and not run.result.done():
                raise StoreError("the program ends, so no more records are read")
        return run.result.result()

    def close(self) -> None:
        """Ends the threads soon."""
        self._closed.set()
        for _ in self._threads:
            self._queue.put(None)
        atexit.unregister(self._end)

    def _end(self) -> None:
        """Ends the iteration with the program.

        A thread that comes back from a store would wait for Python for ever.
        """
        self.close()
        deadline = time.monotonic() + _EXIT_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _checked(self, rows: np.ndarray) -> np.ndarray:
        """Returns the states of records; of kept ones after the check of those of other times."""
        states, checked = self._states[rows], self._source.checked
        if self._cache is None:
            return states
        for place in np.flatnonzero((states == PRESENT) & ~checked[rows]):
            row = int(rows[place])
            if self._layout.find_damaged(self._source.records.array[row : row + 1]) is not None:
                states[place] = ABSENT
                self._cache.mark(row, 1, ABSENT)
            checked[row] = True
        return states

    def _with_neighbours(self, absent: np.ndarray) -> np.ndarray:
        """Adds to absent rows those of their groups of wanted ones, while the cache has room."""
        if self._cache is None or self._cache.is_full or not self._wanted.size:
            return absent
        size = self._most_together
        groups = np.unique(np.searchsorted(self._wanted, absent) // size)
        places = (groups[:, np.newaxis] * size + np.arange(size)).ravel()
        rows = self._wanted[places[places < len(self._wanted)]]
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

    def _read_queue(self) -> None:
        while (run := self._queue.get()) is not None and not self._closed.is_set():
            try:
                run.result.set_result(self._read(run))
            except BaseException as error:
                run.result.set_exception(error)
            del run

    def _read(self, run: _Run) -> np.ndarray | None:
        """Reads and checks a run, and keeps it if it can; returns its result."""
        number, start = self._rows.find(run.first)
        shard, stride = self._source.shards[number], self._layout.stride

        def read() -> np.ndarray:
            content = self._source.files[shard.name].read(start * stride, run.count * stride)
            array = np.frombuffer(content, np.uint8)
            if len(array) != run.count * stride:
                raise StoreError(f"{shard.name} was cut off while it was read")
            records = array.reshape(run.count, stride)
            damaged = self._layout.find_damaged(records)
            if damaged is not None:
                raise damage(shard, start + damaged)
            return records

        records = patiently(read, self._closed)
        if not self._cache or not self._cache.keep(run.first, records):
            return records
        self._source.checked[run.first : run.first + run.count] = True
        return None


def damage(shard: Shard, record: int) -> StoreError:
    """Returns the error of a record that does not match its checksums."""
    advice = "copy the shard again, or build the dataset again with --overwrite"
    return StoreError(f"{shard.name}: record {record} does not match its checksum; {advice}")
