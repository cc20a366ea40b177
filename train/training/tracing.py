"""Traces of a few steps: for TensorBoard, for a trace viewer in the browser, and as a table.

TensorFlow and JAX both write an XSpace protocol buffer, which TensorBoard's profile plugin reads,
and each brings what parses it. From it are made `trace.json.gz`, which chrome://tracing and
ui.perfetto.dev open, and `operations.csv`: time and memory by operation.
"""

from __future__ import annotations

import bisect
import collections
import csv
import dataclasses
import gzip
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tfrecord_io.files import atomic_write

TRACE_NAME = "trace.json.gz"
OPERATIONS_NAME = "operations.csv"

_ALLOCATION = "MemoryAllocation"


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that took time.

    Attributes:
        name: of the operation or function.
        start_ns: nanoseconds, all events of a trace on one clock.
        duration_ns: nanoseconds.
        statistics: what the profiler noted.
    """

    name: str
    start_ns: float
    duration_ns: float
    statistics: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Line:
    """The events of one thread, or of one stream of a device."""

    name: str
    events: Sequence[Event]


@dataclasses.dataclass(frozen=True)
class Plane:
    """The threads of a host, or the streams of a device."""

    name: str
    lines: Sequence[Line]


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
        """Starts the trace if the coming steps include one to trace.

        Args:
            first_step: the next step, counted from 1.
            num_steps: steps that run before the next call.
        """
        if self._steps is None or self._running:
            return
        first, last = self._steps
        if first_step <= last and first_step + num_steps > first:
            self._start()

    def after(self, step: int) -> None:
        """Ends the trace after the last step to trace.

        Args:
            step: number of steps done.
        """
        if self._running and self._steps is not None and step >= self._steps[1]:
            self._stop()

    def __exit__(self, *exception: object) -> None:
        if self._running:
            self._stop()

    def _start(self) -> None:
        self._running = True
        self._directory.mkdir(exist_ok=True)
        if self._backend == "jax":
            import jax

            jax.profiler.start_trace(str(self._directory))
        else:
            import tensorflow as tf

            tf.profiler.experimental.start(str(self._directory))

    def _stop(self) -> None:
        self._running = False
        if self._backend == "jax":
            import jax

            jax.profiler.stop_trace()
        else:
            import tensorflow as tf

            tf.profiler.experimental.stop()
        _write_views(self._directory, self._backend)
        print(f"trace written: {self._directory / TRACE_NAME}, {OPERATIONS_NAME} beside it")


def _write_views(directory: Path, backend: str) -> None:
    """Writes the trace and the table from the newest XSpace under a folder."""
    paths = sorted(directory.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not paths:
        raise FileNotFoundError(f"the profiler wrote no *.xplane.pb under {directory}")
    read = _read_with_jax if backend == "jax" else _read_with_tensorflow
    planes = read(paths[-1])
    events = list(trace_events(planes))
    trace = json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode("utf-8")
    with atomic_write(directory / TRACE_NAME) as file:
        file.write(gzip.compress(trace))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("operation", "where", "calls", "total_us", "mean_us", "allocated_bytes"))
    writer.writerows(operation_table(planes))
    with atomic_write(directory / OPERATIONS_NAME) as file:
        file.write(text.getvalue().encode("utf-8"))


def _read_with_jax(path: Path) -> list[Plane]:
    from jax.profiler import ProfileData

    return [
        Plane(
            plane.name,
            [
                Line(
                    line.name,
                    [
                        Event(
                            event.name,
                            event.start_ns,
                            event.duration_ns,
                            {
                                name: value
                                for name, value in event.stats
                                if isinstance(value, int | float | str)
                            },
                        )
                        for event in line.events
                    ],
                )
                for line in plane.lines
            ],
        )
        for plane in ProfileData.from_file(str(path)).planes
    ]


def _read_with_tensorflow(path: Path) -> list[Plane]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    return [
        Plane(
            plane.name,
            [
                Line(
                    line.display_name or line.name,
                    [
                        Event(
                            plane.event_metadata[event.metadata_id].name,
                            line.timestamp_ns + event.offset_ps / 1e3,
                            event.duration_ps / 1e3,
                            _statistics(plane, event),
                        )
                        for event in line.events
                    ],
                )
                for line in plane.lines
            ],
        )
        for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes
    ]


def trace_events(planes: Sequence[Plane]) -> Iterator[dict[str, Any]]:
    """Yields the events of a trace in Chrome's Trace Event Format, times in microseconds.

    Source: the document "Trace Event Format" of the Chromium project.

    Args:
        planes: the planes of a trace, one for each device or host.
    """
    for process, plane in enumerate(planes):
        if not plane.lines:
            continue
        yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": plane.name}}
        for thread, line in enumerate(plane.lines):
            yield {
                "ph": "M",
                "pid": process,
                "tid": thread,
                "name": "thread_name",
                "args": {"name": line.name},
            }
            for event in line.events:
                yield {
                    "ph": "X",
                    "pid": process,
                    "tid": thread,
                    "name": event.name,
                    "ts": event.start_ns / 1e3,
                    "dur": event.duration_ns / 1e3,
                    "args": dict(event.statistics),
                }


def operation_table(
    planes: Sequence[Plane],
) -> list[tuple[str, str, int, float, float, int]]:
    """Returns one row for each operation, the longest total time first.

    On a GPU every event is an operation. On the host an operation is an event named `node:Type`; an
    allocation counts for the operation that runs on its thread at that time.

    Args:
        planes: the planes of a trace, one for each device or host.

    Returns:
        rows of (operation, device or host, calls, total µs, mean µs, allocated bytes).
    """
    calls: collections.Counter[tuple[str, str]] = collections.Counter()
    nanoseconds: collections.Counter[tuple[str, str]] = collections.Counter()
    allocated: collections.Counter[tuple[str, str]] = collections.Counter()
    for plane in planes:
        on_device = plane.name.startswith("/device:")
        for line in plane.lines:
            spans = []
            for event in line.events:
                operation = _operation(event.name, on_device)
                if operation is not None:
                    key = (operation, plane.name)
                    calls[key] += 1
                    nanoseconds[key] += event.duration_ns
                    spans.append((event.start_ns, event.start_ns + event.duration_ns, key))
            spans.sort()
            starts = [start for start, _, _ in spans]
            for event in line.events:
                if event.name == _ALLOCATION:
                    index = bisect.bisect_right(starts, event.start_ns) - 1
                    if index >= 0 and event.start_ns <= spans[index][1]:
                        size = event.statistics.get("allocation_bytes", 0)
                        allocated[spans[index][2]] += int(size)
    return [
        (
            operation,
            where,
            calls[operation, where],
            round(total / 1e3, 3),
            round(total / 1e3 / calls[operation, where], 3),
            allocated[operation, where],
        )
        for (operation, where), total in nanoseconds.most_common()
    ]


def _operation(name: str, on_device: bool) -> str | None:
    """Returns the type of the operation of an event, or None for another event."""
    if on_device:
        return name
    _, colon, kind = name.partition(":")
    # C++ scopes (`ExecutorState::Process`), phrases (`EagerExecute: f`) and Python's frames
    # (`$file.py:12 function`) are not operations.
    if not colon or not kind or kind.startswith(":") or " " in name or name.startswith("$"):
        return None
    return kind.split("#")[0]


def _statistics(plane: Any, event: Any) -> dict[str, Any]:
    values = {}
    for statistic in event.stats:
        kind = statistic.WhichOneof("value")
        if kind == "ref_value":
            value = plane.stat_metadata[statistic.ref_value].name
        elif kind in (None, "bytes_value"):
            continue
        else:
            value = getattr(statistic, kind)
        values[plane.stat_metadata[statistic.metadata_id].name] = value
    return values
