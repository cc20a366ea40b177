"""Monitors of a run: stop signals, NaN, hanging steps, retracing, progress, TensorBoard.

None of them changes what is learnt.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import math
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Self

import numpy as np

from tfrecord_io import schema
from train.devices import Devices
from train.errors import TrainingError
from train.training.steps import StepResults

#: The input is the bottleneck if a run waits for it for more than this share of its time.
INPUT_BOUND_SHARE = 0.1


class StopSignal:
    """Records SIGTERM and SIGINT, so that the running step can end first."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.received: int | None = None
        self._signals = (signal.SIGTERM, signal.SIGINT) if enabled else ()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in self._signals:
            self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            # A second signal stops the run at once.
            raise KeyboardInterrupt
        self.received = number


def check_finite(losses: np.ndarray, first_step: int) -> None:
    """Raises an error for the first step whose loss is not finite.

    Args:
        losses: [num_steps], of consecutive steps.
        first_step: number of the first of these steps, counted from 1.

    Raises:
        TrainingError: if a loss is NaN or infinite; the message names the step.
    """
    bad = np.flatnonzero(~np.isfinite(losses))
    if bad.size:
        raise TrainingError(
            f"the loss is {losses[bad[0]]} at step {first_step + bad[0]}: the weights "
            "went out of range before it. Lower --learning_rate, raise --warmup_steps, or use "
            "--precision float32. The last checkpoint is older than that step"
        )


class RetraceGuard:
    """Detects that a training graph is traced again, which costs minutes and leaks memory.

    Args:
        action: `warn` or `fail`.
    """

    def __init__(self, action: str) -> None:
        self._action = action
        self._num_traces = 1

    def check(self, num_traces: int, step: int) -> None:
        """Warns if a graph of this phase, traced so often by this step, was traced again.

        Raises:
            TrainingError: if it was and the action is `fail`.
        """
        if num_traces <= self._num_traces:
            return
        self._num_traces = num_traces
        message = (
            f"the training graph was traced again before step {step} ({num_traces} traces so "
            "far); finalize your graph: feed it tensors of one shape and dtype, and no Python "
            "numbers that change"
        )
        if self._action == "fail":
            raise TrainingError(message)
        print(f"warning: {message}", file=sys.stderr)


class Watchdog:
    """Writes the stacks of all threads to a file when no step has ended for some time.

    TensorFlow has timeouts of operations only in `compat.v1` sessions. This timer is C code that
    does not need the GIL, so it works while the main thread hangs in a native call.

    Args:
        seconds: time without a finished step; 0 for no watchdog.
        path: the file for the stacks; removed if it stays empty.
    """

    def __init__(self, seconds: float, path: Path) -> None:
        self._seconds = seconds
        self._path = path
        self._file: Any = None

    def __enter__(self) -> Self:
        if self._seconds:
            self._file = self._path.open("w", encoding="utf-8")
            self.restart()
        return self

    def restart(self) -> None:
        """Restarts the timer, because a step has ended."""
        if self._file is not None:
            faulthandler.dump_traceback_later(self._seconds, repeat=True, file=self._file)

    def __exit__(self, *exception: object) -> None:
        if self._file is None:
            return
        faulthandler.cancel_dump_traceback_later()
        self._file.close()
        if self._path.stat().st_size:
            print(
                f"warning: no step ended for {self._seconds:g} s; see {self._path}",
                file=sys.stderr,
            )
        else:
            self._path.unlink()


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
            num_steps, num_examples = len(results.totals), results.num_examples.sum()
            self._timed += num_examples, num_steps, seconds, results.wait_seconds

    def totals(self) -> dict[str, float]:
        """Returns the sums that a checkpoint stores of an unfinished epoch."""
        names = ("loss_sum", "num_correct", "num_examples")
        return dict(zip(names, self._sums.tolist(), strict=True))

    @property
    def loss(self) -> float:
        """Mean cross-entropy of an example, in nats."""
        return float(self._sums[0] / max(self._sums[2], 1.0))

    @property
    def accuracy(self) -> float:
        """Share of the examples that were classified correctly; of numbers, the mean error."""
        return float(self._sums[1] / max(self._sums[2], 1.0))

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


class TensorBoardWriter:
    """Writes the numbers of an epoch as TensorBoard scalars.

    Args:
        directory: for the event files; None to write nothing.
    """

    def __init__(self, directory: Path | None) -> None:
        self._file: Any = None
        if directory is None:
            return
        if importlib.util.find_spec("tensorboard") is None:
            print("note: TensorBoard scalars need `pip install tensorboard`", file=sys.stderr)
            return
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = (directory / name).open("ab")
        self._append(file_version="brain.Event:2")

    def write(self, row: Mapping[str, Any], step: int) -> None:
        """Writes all numbers of a history row at a step."""
        if self._file is None:
            return
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        for name, value in row.items():
            if isinstance(value, int | float) and name not in ("epoch", "step"):
                self._append(step=step, summary=scalar_pb(name, value))
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _append(self, **fields: Any) -> None:
        # The file is a TFRecord of events. Written here, because TensorBoard's own writer imports
        # TensorFlow wherever it is installed.
        from tensorboard.compat.proto.event_pb2 import Event

        event = Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(event))
        for part in (length, event):
            self._file.write(part + struct.pack("<I", schema.masked_crc32c(part)))
