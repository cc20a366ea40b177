"""What a run asks of its process: signals to stop, and the memory that it takes."""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from train.machine.devices import Devices


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Yields a list to which the signals that end a process are added, so that a step can end."""
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if received:  # a second signal ends the process at once
            signal.signal(number, previous[number])
            signal.raise_signal(number)
        received.append(number)

    # SIGHUP comes from a closed terminal; nohup has it ignored.
    is_kept = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    numbers = [signal.SIGTERM, signal.SIGINT] + [signal.SIGHUP] * is_kept
    previous = {number: signal.signal(number, remember) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


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
