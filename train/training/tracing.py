"""Traces of a few steps: for TensorBoard, for a trace viewer in the browser, and as a table.

TensorFlow and JAX both write an XSpace protocol buffer, which TensorBoard's profile plugin reads,
and each brings what parses it. From it are made `trace.json.gz`, which chrome://tracing and
ui.perfetto.dev open, and `operations.csv`: time and memory by operation.
"""

from __future__ import annotations

import bisect
import collections
import csv
import gzip
import io
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from tfrecord_io.files import atomic_write

TRACE_NAME = "trace.json.gz"
OPERATIONS_NAME = "operations.csv"

_ALLOCATION = "MemoryAllocation"


class Event(NamedTuple):
    """Something that took time.

    Attributes:
        place: of the event, a host or a device.
        thread: number and name of the thread of the host, or the stream of the device.
        name: of the operation or function.
        start_ns: nanoseconds, all events of a trace on one clock.
        duration_ns: nanoseconds.
        statistics: what the profiler noted.
    """

    place: str
    thread: tuple[int, str]
    name: str
    start_ns: float
    duration_ns: float
    statistics: Mapping[str, Any]


class Tracer:
    """Traces a range of steps.

    Args:
        steps: first and last step to trace, counted from 1; None for no trace.
        directory: folder of the trace, created if it is missing.
        backend: `tensorflow` or `jax`.
    """

    def __init__(self, steps: tuple[int, int] | None, directory: Path, backend: str) -> None:
        self._steps = steps
        self._directory = directory
        self._backend = backend
        self._running = False

    def __enter__(self) -> Self:
        return self

    def before(self, first_step: int, num_steps: int) -> None:
        """Starts the trace if one of the coming steps, counted from 1, is to be traced."""
        if self._steps is None or self._running:
            return
        first, last = self._steps
        if first_step <= last and first_step + num_steps > first:
            self._running = True
            self._directory.mkdir(exist_ok=True)
            start, _ = _profiler(self._backend)
            start(str(self._directory))

    def after(self, step: int) -> None:
        """Ends the trace if so many steps are done that none is left to trace."""
        if self._running and self._steps is not None and step >= self._steps[1]:
            self._stop()

    def __exit__(self, *exception: object) -> None:
        if self._running:
            self._stop()

    def _stop(self) -> None:
        self._running = False
        _, stop = _profiler(self._backend)
        stop()
        _write_views(self._directory, self._backend)
        print(f"trace written: {self._directory / TRACE_NAME}, {OPERATIONS_NAME} beside it")


def _profiler(backend: str) -> tuple[Callable[[str], None], Callable[[], None]]:
    """Returns what starts a trace into a folder, and what ends it."""
    if backend == "jax":
        import jax

        return jax.profiler.start_trace, jax.profiler.stop_trace
    import tensorflow as tf

    return tf.profiler.experimental.start, tf.profiler.experimental.stop


def _write_views(directory: Path, backend: str) -> None:
    """Writes the trace and the table from the newest XSpace under a folder."""
    paths = sorted(directory.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not paths:
        raise FileNotFoundError(f"the profiler wrote no *.xplane.pb under {directory}")
    read = _read_with_jax if backend == "jax" else _read_with_tensorflow
    events = list(read(paths[-1]))
    trace = {"displayTimeUnit": "ms", "traceEvents": list(trace_events(events))}
    with atomic_write(directory / TRACE_NAME) as file:
        file.write(gzip.compress(json.dumps(trace).encode("utf-8")))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("operation", "where", "calls", "total_us", "mean_us", "allocated_bytes"))
    writer.writerows(operation_table(events))
    with atomic_write(directory / OPERATIONS_NAME) as file:
        file.write(text.getvalue().encode("utf-8"))


def _read_with_jax(path: Path) -> Iterator[Event]:
    from jax.profiler import ProfileData

    for plane in ProfileData.from_file(str(path)).planes:
        for number, line in enumerate(plane.lines):
            for event in line.events:
                statistics = {
                    name: value
                    for name, value in event.stats
                    if isinstance(value, int | float | str)
                }
                yield Event(
                    plane.name,
                    (number, line.name),
                    event.name,
                    event.start_ns,
                    event.duration_ns,
                    statistics,
                )


def _read_with_tensorflow(path: Path) -> Iterator[Event]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:

        def value_of(statistic: Any, plane: Any = plane) -> Any:
            kind = statistic.WhichOneof("value")
            if kind == "ref_value":
                return plane.stat_metadata[statistic.ref_value].name
            return None if kind in (None, "bytes_value") else getattr(statistic, kind)

        for number, line in enumerate(plane.lines):
            for event in line.events:
                statistics = {
                    plane.stat_metadata[statistic.metadata_id].name: value
                    for statistic in event.stats
                    if (value := value_of(statistic)) is not None
                }
                yield Event(
                    plane.name,
                    (number, line.display_name or line.name),
                    plane.event_metadata[event.metadata_id].name,
                    line.timestamp_ns + event.offset_ps / 1e3,
                    event.duration_ps / 1e3,
                    statistics,
                )


def trace_events(events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    """Yields events in Chrome's Trace Event Format, times in microseconds.

    Source: the document "Trace Event Format" of the Chromium project.

    Args:
        events: those of a place and of a thread follow each other.
    """
    for process, (place, of_place) in enumerate(itertools.groupby(events, lambda e: e.place)):
        yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": place}}
        for (thread, name), of_thread in itertools.groupby(of_place, lambda e: e.thread):
            ids = {"pid": process, "tid": thread}
            yield {"ph": "M", **ids, "name": "thread_name", "args": {"name": name}}
            for event in of_thread:
                yield {
                    "ph": "X",
                    **ids,
                    "name": event.name,
                    "ts": event.start_ns / 1e3,
                    "dur": event.duration_ns / 1e3,
                    "args": dict(event.statistics),
                }


def operation_table(events: Sequence[Event]) -> list[tuple[str, str, int, float, float, int]]:
    """Returns one row for each operation, the longest total time first.

    On a GPU every event is an operation. On the host an operation is an event named `node:Type`; an
    allocation counts for the operation that runs on its thread at that time.

    Args:
        events: those of a place and of a thread follow each other.

    Returns:
        rows of (operation, device or host, calls, total µs, mean µs, allocated bytes).
    """
    calls: collections.Counter[tuple[str, str]] = collections.Counter()
    nanoseconds: collections.Counter[tuple[str, str]] = collections.Counter()
    allocated: collections.Counter[tuple[str, str]] = collections.Counter()
    for _, group in itertools.groupby(events, lambda event: (event.place, event.thread)):
        of_thread = sorted(group, key=lambda event: event.start_ns)
        spans = []
        for event in of_thread:
            if (operation := _operation(event)) is not None:
                key = (operation, event.place)
                calls[key] += 1
                nanoseconds[key] += event.duration_ns
                spans.append((event.start_ns, event.start_ns + event.duration_ns, key))
        starts = [start for start, _, _ in spans]
        for event in of_thread:
            index = bisect.bisect_right(starts, event.start_ns) - 1
            if event.name == _ALLOCATION and index >= 0 and event.start_ns <= spans[index][1]:
                allocated[spans[index][2]] += int(event.statistics.get("allocation_bytes", 0))
    return [
        (
            *key,
            calls[key],
            round(total / 1e3, 3),
            round(total / 1e3 / calls[key], 3),
            allocated[key],
        )
        for key, total in nanoseconds.most_common()
    ]


def _operation(event: Event) -> str | None:
    """Returns the type of the operation of an event, or None for another event."""
    name = event.name
    if event.place.startswith("/device:"):
        return name
    _, colon, kind = name.partition(":")
    # C++ scopes (`ExecutorState::Process`), phrases (`EagerExecute: f`) and Python's frames
    # (`$file.py:12 function`) are not operations.
    if not colon or not kind or kind.startswith(":") or " " in name or name.startswith("$"):
        return None
    return kind.split("#")[0]
