"""How fast are batches read, compared with the limit of the machine and with other readers?

    python benchmarks/read_speed.py [--data OUT] [--ways mmap numpy ...] [--output FILE]

It needs the extras `train`, `test` and `bench`. A way whose packages are missing is left out, and
the reason is printed. Without `--data`, 13,056 images of 224x224x1 are drawn. Every way reads the
same pixels from the page cache in batches of 64. Each way has its own process, which is stopped
while others read, so that they do not disturb each other. The rounds alternate between the ways and
the medians of the rounds are compared, so a machine that slows down affects all ways alike.

The ways (`read_ways.py`): `limit` is one thread that gathers from one memory map into memory that
it has already; `mmap` is `make_dataset`, `mmap_epoch_1`
the same while it checks each record, `numpy` is `make_batches`;
`tfrecord` is a plain TFRecordDataset that parses whole batches; `decode` and `decode_grey` read,
decode and resize in each step, to three channels as the tutorial of 2018 did, or to one; the
others are what their names say.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from read_data import WRITERS, ReadData, draw_records, warm
from read_ways import BATCH_SIZE, WAYS
from sample_archive import WORK_DIR

NUM_IMAGES = 204 * BATCH_SIZE

#: The goals: a way, the way it is compared with, and the smallest ratio of their speeds.
GOALS = (
    ("mmap", "limit", 0.5),
    ("numpy", "limit", 0.9),
    ("mmap", "tfrecord", 5.0),
    ("mmap_epoch_1", "tfrecord", 4.0),
    *(("mmap", peer, 8.0) for peer in ("tfds", "grain", "webdataset", "mosaicml")),
    ("mmap", "decode", 100.0),
)


class WayProcess:
    """A way in its own process, which is stopped with its workers unless it reads."""

    def __init__(self, name: str, data: ReadData) -> None:
        program = str(Path(__file__).with_name("read_ways.py"))
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(
            [sys.executable, program, name, str(data.records), str(data.work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            process_group=0,
        )

    def read_for(self, seconds: float) -> dict[str, float]:
        """Reads for some seconds and returns the figures.

        Raises:
            RuntimeError: if the way failed; the message is the last line of its error output.
        """
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # the process's error output says why it ended
            self._process.stdin.write(f"{seconds}\n")
            self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith("{"):  # other lines come from packages that print
                self._signal(signal.SIGSTOP)
                return json.loads(line)
        self._errors.seek(0)
        raise RuntimeError((self._errors.read().strip().splitlines() or ["no reason given"])[-1])

    def end(self) -> None:
        """Ends the process."""
        self._signal(signal.SIGCONT)
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="finished dataset [a drawn one]")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of a round of a way")
    parser.add_argument("--prepare", action="store_true", help="only write the data")
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()
    data = prepare(arguments.data)
    reasons = write_peers(data, arguments.ways)
    if arguments.prepare:
        return
    ways = [name for name in arguments.ways if name not in reasons]
    rows = compare(data, ways, arguments.rounds, arguments.seconds, reasons)
    report(rows, reasons, data)
    if arguments.output:
        arguments.output.write_text(json.dumps({"ways": rows, "left_out": reasons}, indent=1))


def prepare(records: Path | None) -> ReadData:
    """Returns the data to read: a finished dataset, or a drawn one."""
    work = WORK_DIR / "read-speed"
    return ReadData(records or draw_records(work / f"records-{NUM_IMAGES}", NUM_IMAGES), work)


def write_peers(data: ReadData, ways: list[str]) -> dict[str, str]:
    """Writes the data of each way; returns the reason by way where that is impossible."""
    reasons = {}
    for name in ways:
        try:
            WRITERS.get(name, lambda _: None)(data)
        except ImportError as error:
            reasons[name] = str(error)
    return reasons


def compare(
    data: ReadData, ways: list[str], num_rounds: int, seconds: float, reasons: dict[str, str]
) -> dict[str, dict[str, float]]:
    """Returns the medians by way; adds the ways that fail to `reasons`."""
    processes: dict[str, WayProcess] = {}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    try:
        for _ in range(num_rounds + 1):  # the first round warms up
            for name in ways:
                if name not in reasons:
                    if name not in processes:
                        processes[name] = WayProcess(name, data)
                    warm(data, name)
                    try:
                        rounds[name].append(processes[name].read_for(seconds))
                    except RuntimeError as error:
                        reasons[name] = str(error)
    finally:
        for process in processes.values():
            process.end()
    return {
        name: {figure: statistics.median(row[figure] for row in turns[1:]) for figure in turns[0]}
        for name, turns in rounds.items()
        if name not in reasons
    }


def report(rows: dict[str, dict[str, float]], reasons: dict[str, str], data: ReadData) -> None:
    """Prints the speed of each way, and which goals are reached."""
    shape = "x".join(str(size) for size in data.manifest.image_shape)
    print(f"{data.num_examples:,} images {shape}, batches of {BATCH_SIZE}\n")
    print("| way | images/s | CPU µs per image | mmap is x times |")
    print("| --- | --- | --- | --- |")
    ours = rows.get("mmap", {}).get("images_per_second")
    for name, row in rows.items():
        speed = row["images_per_second"]
        times = f"{ours / speed:.2f}" if ours else ""
        print(f"| {name} | {speed:,.0f} | {row['cpu_us']:,.1f} | {times} |")
    for name, reason in reasons.items():
        print(f"| {name} | left out: {reason} | | |")
    print()
    for name, other, goal in GOALS:
        if name in rows and other in rows:
            ratio = rows[name]["images_per_second"] / rows[other]["images_per_second"]
            verdict = "reached" if ratio >= goal else "MISSED"
            print(f"{name} / {other}: {ratio:.2f}, goal {goal}: {verdict}")


if __name__ == "__main__":
    main()
