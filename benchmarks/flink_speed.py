"""How fast is the build on a local Flink cluster, compared with the local engine?

    python benchmarks/flink_speed.py --num_images 20000

Both read the same zip with two workers, in alternating runs. The rate is measured between the first
and the last finished shard, so that it excludes the start: starting a JobManager and two
TaskManagers on the cores of the workers says nothing about a cluster that is already running. See
`scripts/flink_cluster.py` for what must be installed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import sample_archive

sys.path.append(str(Path(__file__).parents[1]))
from scripts import flink_cluster
from scripts.flink_cluster import Cluster

NUM_WORKERS = 2
# So many that the unfinished shards at the start of the measurement hardly matter.
NUM_SHARDS = 100


class Run(NamedTuple):
    """The cost of a build.

    Attributes:
        rate: images/s, without the start.
        seconds: wall time of the whole command.
        cpu_ms: CPU time per image of the command and its workers, in ms, including the start. On a
            shared machine it is more reliable than the rate.
        digests: SHA-256 of the shards, by file name.
    """

    rate: float
    seconds: float
    cpu_ms: float
    digests: dict[str, str]


def build(path: Path, output: Path, flags: Sequence[str]) -> Run:
    """Runs a build and measures it.

    Args:
        path: the zip to build from.
        output: folder of the dataset, removed if it exists.
        flags: flags that choose the engine.
    """
    shutil.rmtree(output, ignore_errors=True)
    words = ["--source=archive", f"--input={path.resolve()}", f"--num_shards={NUM_SHARDS}"]
    start, cpu = time.perf_counter(), cpu_seconds()
    subprocess.run(
        flink_cluster.build_command(output, [*words, *flags]),
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    finished = sorted(
        (sidecar.stat().st_mtime, json.loads(sidecar.read_text())["num_refs"])
        for sidecar in output.glob("*-of-*.json")
    )
    counts = [count for _, count in finished]
    rate = sum(counts[1:]) / (finished[-1][0] - finished[0][0])
    digests = flink_cluster.shard_digests(output)
    return Run(rate, seconds, cpu / sum(counts) * 1e3, digests)


def cpu_seconds() -> float:
    """Returns the CPU time of the whole machine: not all workers are our child processes."""
    spent = psutil.cpu_times()
    return spent.user + spent.system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_images", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--sample", type=Path, default=Path("../shared/data/kermany2018-sample.zip")
    )
    parser.add_argument("--job_server", type=Path, default=flink_cluster.DEFAULT_JOB_SERVER)
    args = parser.parse_args()
    path = sample_archive.make_archive(args.sample, args.num_images)
    ratios = []
    print(
        f"| run of {args.num_images:,} | ratio | local, images/s | Flink, images/s | local, s "
        "| Flink, s | local, CPU ms per image | Flink, CPU ms per image |\n" + "| --- " * 8 + "|"
    )
    with (
        tempfile.TemporaryDirectory(prefix="flink-speed-") as folder,
        Cluster(Path(folder) / "cluster", args.job_server, NUM_WORKERS) as cluster,
    ):
        output = Path(folder) / "dataset"
        for run in range(args.repeats):
            local = build(path, output, [f"--direct_num_workers={NUM_WORKERS}"])
            flink = build(path, output, cluster.beam_flags)
            if flink.digests != local.digests:
                sys.exit("the shards differ")
            ratios.append(flink.rate / local.rate)
            cells = [f"{flink.rate / local.rate:.2f}"]
            cells += [f"{kind.rate:.0f}" for kind in (local, flink)]
            cells += [f"{kind.seconds:.0f}" for kind in (local, flink)]
            cells += [f"{kind.cpu_ms:.2f}" for kind in (local, flink)]
            print(f"| {run + 1} | " + " | ".join(cells) + " |", flush=True)
    print(f"\nmedian ratio {statistics.median(ratios):.2f} (goal: 0.8)")


if __name__ == "__main__":
    main()
