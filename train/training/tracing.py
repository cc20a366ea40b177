"""Traces of a few steps: for TensorBoard, for a trace viewer in the browser, and as a table.

TensorFlow and JAX both write an XSpace protocol buffer, which TensorBoard's profile plugin reads.
`trace.json.gz` has the same events in Chrome's Trace Event Format, which ui.perfetto.dev opens, and
`operations.csv` has time and memory by operation.
"""

from __future__ import annotations

import collections
import contextlib
import csv
import gzip
import io
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfrecord_io.files import atomic_write

TRACE_NAME = "trace.json.gz"
OPERATIONS_NAME = "operations.csv"

_HEADER = ("operation", "where", "calls", "total_us", "mean_us", "allocated_bytes")

#: An event, see the document "Trace Event Format" of the Chromium project. Times (`ts`, `dur`) are
#: in microseconds; an event of phase M names a process (here a host or a device) or a thread.
Event = Mapping[str, Any]


@contextlib.contextmanager
def tracer(
    steps: tuple[int, int] | None, directory: Path, backend: str
) -> Iterator[Callable[[int, int], None]]:
    """Traces a range of steps.

    Args:
        steps: first and last step to trace, counted from 1; None for no trace.
        directory: folder of the trace, created if it is missing.
        backend: `tensorflow` or `jax`.

    Yields:
        a function to call before and after steps, with the numbers of the first and the last step
        that come next; after steps the last may be one less than the first.
    """
    with contextlib.ExitStack() as trace:
        was_on = False

        def turn(first: int, last: int) -> None:
            nonlocal was_on
            if was_on and first > steps[1]:
                trace.close()
            elif not was_on and steps and first <= steps[1] and last >= steps[0]:
                was_on = True
                start, stop = _profiler(backend)
                directory.mkdir(exist_ok=True)
                start(str(directory))
                trace.callback(_write_views, directory, backend)
                trace.callback(stop)

        yield turn


def _profiler(backend: str) -> tuple[Callable[[str], None], Callable[[], None]]:
    """Returns what starts a trace into a folder, and what ends it."""
    if backend == "jax":
        import jax

        return jax.profiler.start_trace, jax.profiler.stop_trace
    import tensorflow as tf

    return tf.profiler.experimental.start, tf.profiler.experimental.stop


def _write_views(directory: Path, backend: str) -> None:
    """Writes the trace and the table from the newest XSpace under a folder."""
    # JAX writes the events as JSON, too.
    pattern = "*.trace.json.gz" if backend == "jax" else "*.xplane.pb"
    newest = max(directory.rglob(pattern), key=lambda path: path.stat().st_mtime).read_bytes()
    if backend == "jax":
        events = json.loads(gzip.decompress(newest))["traceEvents"]
    else:
        events = list(_events(newest))
    trace = {"displayTimeUnit": "ms", "traceEvents": events}
    with atomic_write(directory / TRACE_NAME) as file:
        file.write(gzip.compress(json.dumps(trace).encode("utf-8")))
    text = io.StringIO()
    csv.writer(text).writerows([_HEADER, *operation_table(events)])
    with atomic_write(directory / OPERATIONS_NAME) as file:
        file.write(text.getvalue().encode("utf-8"))
    print(f"trace written: {directory / TRACE_NAME}, {OPERATIONS_NAME} beside it")


def _events(xspace: bytes) -> Iterator[Event]:
    """Yields the events of an XSpace that TensorFlow wrote."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for process, plane in enumerate(xplane_pb2.XSpace.FromString(xspace).planes):
        yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": plane.name}}
        for thread, line in enumerate(plane.lines):
            ids, name = {"pid": process, "tid": thread}, line.display_name or line.name
            yield {"ph": "M", **ids, "name": "thread_name", "args": {"name": name}}
            for event in line.events:
                yield {
                    "ph": "X",
                    **ids,
                    "name": plane.event_metadata[event.metadata_id].name,
                    "ts": line.timestamp_ns / 1e3 + event.offset_ps / 1e6,
                    "dur": event.duration_ps / 1e6,
                    "args": {
                        plane.stat_metadata[each.metadata_id].name: _value(plane, each)
                        for each in event.stats
                        if each.WhichOneof("value") not in (None, "bytes_value")
                    },
                }


def _value(plane: Any, statistic: Any) -> Any:
    kind = statistic.WhichOneof("value")
    value = getattr(statistic, kind)
    return plane.stat_metadata[value].name if kind == "ref_value" else value


def operation_table(events: Sequence[Event]) -> list[tuple[str, str, int, float, float, int]]:
    """Returns one row for each operation, the longest total time first.

    On a GPU every event is an operation. On the host an operation is an event named `node:Type`; an
    allocation counts for the operation that runs on its thread at that time.

    Returns:
        rows of (operation, device or host, calls, total µs, mean µs, allocated bytes).
    """
    places = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event.get("name") == "process_name"
    }
    calls: collections.Counter[tuple[str, str]] = collections.Counter()
    total: collections.Counter[tuple[str, str]] = collections.Counter()
    allocated: collections.Counter[tuple[str, str]] = collections.Counter()
    timed = sorted(
        (event for event in events if event.get("ph") == "X"),
        key=lambda event: (event["pid"], event["tid"], event["ts"]),
    )
    for _, of_thread in itertools.groupby(timed, lambda event: (event["pid"], event["tid"])):
        spans: list[tuple[float, float, tuple[str, str]]] = []
        for event in of_thread:
            place = places[event["pid"]]
            if (operation := _operation(event["name"], place)) is not None:
                key = (operation, place)
                calls[key] += 1
                total[key] += event["dur"]
                spans.append((event["ts"], event["ts"] + event["dur"], key))
            elif event["name"] == "MemoryAllocation" and spans and event["ts"] <= spans[-1][1]:
                allocated[spans[-1][2]] += int(event["args"].get("allocation_bytes", 0))
    return [
        (*key, calls[key], round(time, 3), round(time / calls[key], 3), allocated[key])
        for key, time in total.most_common()
    ]


def _operation(name: str, place: str) -> str | None:
    """Returns the type of the operation of an event, or None for another event."""
    if place.startswith("/device:"):
        return name
    _, colon, kind = name.partition(":")
    # C++ scopes (`ExecutorState::Process`), phrases (`EagerExecute: f`) and Python's frames
    # (`$file.py:12 function`) are not operations.
    if not colon or not kind or kind.startswith(":") or " " in name or name.startswith("$"):
        return None
    return kind.split("#")[0]
