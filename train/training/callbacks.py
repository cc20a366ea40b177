"""Monitors of a run: stop signals, NaN, hanging steps, retracing, progress, TensorBoard.

None of them changes what is learnt.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib.util
import math
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from tfrecord_io import schema
from train.devices import Devices
from train.errors import TrainingError
from train.training.steps import StepResults


@contextlib.contextmanager
def stop_signals(*, enabled: bool = True) -> Iterator[list[int]]:
    """Yields a list to which SIGTERM and SIGINT are added, so that the running step can end."""
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if received:  # A second signal stops the run at once.
            raise KeyboardInterrupt
        received.append(number)

    numbers = (signal.SIGTERM, signal.SIGINT) if enabled else ()
    previous = {number: signal.signal(number, remember) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def check_finite(losses: np.ndarray, first_step: int) -> None:
    """Raises a TrainingError that names the first of consecutive steps whose loss is not finite.

    Args:
        losses: [num_steps].
        first_step: number of the first of these steps, counted from 1.
    """
    bad = np.flatnonzero(~np.isfinite(losses))
    if bad.size:
        raise TrainingError(
            f"the loss is {losses[bad[0]]} at step {first_step + bad[0]}: the weights "
            "went out of range before it. Lower --learning_rate, raise --warmup_steps, or use "
            "--precision float32. The last checkpoint is older than that step"
        )


def report_retrace(action: str, num_traces: int, step: int) -> None:
    """Tells that a training graph was traced again, which costs minutes and leaks memory.

    Raises:
        TrainingError: if the action is `fail` and not `warn`.
    """
    message = (
        f"the training graph was traced again before step {step} ({num_traces} traces so far); "
        "feed it tensors of one shape and dtype, and no Python numbers that change"
    )
    if action == "fail":
        raise TrainingError(message)
    print(f"warning: {message}", file=sys.stderr)


@contextlib.contextmanager
def watchdog(seconds: float, path: Path) -> Iterator[Callable[[], None]]:
    """Writes the stacks of all threads to a file when no step has ended for some time.

    The timer is C code that does not need the GIL, so it works while the main thread hangs in a
    native call.

    Args:
        seconds: time without a finished step; 0 for no watchdog.
        path: the file for the stacks; removed if it stays empty.

    Yields:
        a function that restarts the timer, because a step has ended.
    """
    if not seconds:
        yield lambda: None
        return
    with path.open("w", encoding="utf-8") as file:
        arm = functools.partial(faulthandler.dump_traceback_later, seconds, repeat=True, file=file)
        arm()
        try:
            yield arm
        finally:
            faulthandler.cancel_dump_traceback_later()
            if path.stat().st_size:
                print(f"warning: no step ended for {seconds:g} s; see {path}", file=sys.stderr)
            else:
                path.unlink()


class EpochMeter:
    """Measures an epoch: loss, accuracy, speed and the time spent waiting for input.

    To continue an epoch from a checkpoint, pass what `totals` returned. Time and speed are measured
    from there on.

    Attributes:
        seconds: duration of all steps, including the wait for input.
    """

    def __init__(
        self, *, loss_sum: float = 0.0, num_correct: float = 0.0, num_examples: float = 0.0
    ) -> None:
        self._sums = np.array([loss_sum, num_correct, num_examples])
        self.seconds = 0.0
        # Of the steps that are timed: examples, steps, seconds, seconds of waiting for input.
        self._timed = np.zeros(4)

    def add(self, results: StepResults, seconds: float, *, timed: bool) -> None:
        """Adds the results of some steps.

        Args:
            results: results of the steps.
            seconds: duration of the steps, including the wait for input.
            timed: False if the steps included tracing a graph; they do not count for the speed.
        """
        # Summing float64 in order gives a resumed epoch the same bits.
        for row in results.totals:
            self._sums += row
        self.seconds += seconds
        if timed:
            num_examples = results.totals[:, 2].sum()
            self._timed += num_examples, len(results.totals), seconds, results.wait_seconds

    def totals(self) -> dict[str, float]:
        """Returns the sums that a checkpoint stores of an unfinished epoch."""
        names = ("loss_sum", "num_correct", "num_examples")
        return dict(zip(names, self._sums.tolist(), strict=True))

    def means(self) -> list[float]:
        """Returns [mean loss of an example in nats, share of right answers or mean error]."""
        return (self._sums[:2] / max(self._sums[2], 1.0)).tolist()

    def speed(self) -> dict[str, float | None]:
        """Returns the speed and the wait for input.

        Returns:
            `images_per_second`, `step_ms` and `input_wait_share` (of the time, 0 to 1). All are
            None if no step was timed; the share is also None if the graph cannot read a clock.
        """
        num_examples, num_steps, seconds, waited = self._timed.tolist()
        if not seconds:
            return {"images_per_second": None, "step_ms": None, "input_wait_share": None}
        return {
            "images_per_second": num_examples / seconds,
            "step_ms": 1000 * seconds / num_steps,
            "input_wait_share": None if math.isnan(waited) else waited / seconds,
        }


def memory_megabytes(devices: Devices) -> dict[str, float]:
    """Returns `peak_rss_mb` of this process and, if it uses GPUs, `peak_gpu_mb` of the first."""
    # getrusage counts in kilobytes on Linux, in bytes on macOS.
    unit = 1e6 if sys.platform == "darwin" else 1e3
    memory = {"peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
    if devices.on_gpu and devices.backend == "tensorflow":
        import tensorflow as tf

        memory["peak_gpu_mb"] = tf.config.experimental.get_memory_info("GPU:0")["peak"] / 1e6
    elif devices.on_gpu:
        import jax

        statistics = jax.devices()[0].memory_stats() or {}
        memory["peak_gpu_mb"] = statistics.get("peak_bytes_in_use", 0) / 1e6
    return memory


@contextlib.contextmanager
def tensorboard(
    directory: Path, *, enabled: bool = True
) -> Iterator[Callable[[Mapping[str, Any], int], None]]:
    """Yields a function that writes all numbers of a history row at a step as TensorBoard scalars.

    Args:
        directory: for the event files.
        enabled: whether anything is written.
    """
    if enabled and importlib.util.find_spec("tensorboard") is None:
        print("note: TensorBoard scalars need `pip install tensorboard`", file=sys.stderr)
        enabled = False
    if not enabled:
        yield lambda row, step: None
        return
    # The file is a TFRecord of events. Written here, because TensorBoard's own writer imports
    # TensorFlow wherever it is installed.
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb

    directory.mkdir(parents=True, exist_ok=True)
    name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
    with (directory / name).open("ab") as file:

        def append(**fields: Any) -> None:
            event = Event(wall_time=time.time(), **fields).SerializeToString()
            for part in (struct.pack("<Q", len(event)), event):
                file.write(part + struct.pack("<I", schema.masked_crc32c(part)))

        def write(row: Mapping[str, Any], step: int) -> None:
            for tag, value in row.items():
                if isinstance(value, int | float) and tag not in ("epoch", "step"):
                    append(step=step, summary=scalar_pb(tag, value))
            file.flush()

        append(file_version="brain.Event:2")
        yield write
