"""Images a second by number of replicas: python train/benchmark.py --data OUT --replicas 1,2,4.

Each number of replicas is measured twice: fed by the reader, and with one batch that already
lies on the devices. The ratio of the two is what the input really costs. The rounds alternate, so
that a machine that slows down slows both. Exit codes: 0, or 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import sys
from pathlib import Path

from tfrecord_io.stores.files import write_json
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.flags import flag
from train.extras.bucket import open_run
from train.machine import console
from train.training import config as train_config
from train.training.config import TrainConfig

#: Columns of the table, and how each is printed.
COLUMNS = {
    "replicas": "g",
    "images_per_second": ",.0f",
    "images_per_second_on_device": ",.0f",
    "input_ratio": ".3f",
    "input_wait_share": ".1%",
    "speedup": ".2f",
    "efficiency": ".0%",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """What is measured, and where it is written."""

    replicas: str = flag("1", "numbers such as 1,2,4", metavar="N,N")
    steps: int = flag(30, "steps of a round", least=1)
    rounds: int = flag(5, "the median counts", least=1)
    output: Path | None = flag(None, "folder for the table (CSV, JSON)", metavar="DIR")

    def __post_init__(self) -> None:
        flags.check(self)
        if not all(part.isdigit() and int(part) > 0 for part in self.replicas.split(",")):
            raise ValueError(f"--replicas: must be numbers such as 1,2,4, not {self.replicas!r}")


def measure(config: TrainConfig, replicas: int, options: BenchmarkOptions) -> dict[str, float]:
    """Returns a row of the table without `speedup` and `efficiency`.

    The input ratio is 1 if the input costs nothing. Raises UserError if there are fewer devices.
    """
    from train.training.timing import prepare_steps, time_rounds

    num_steps, num_rounds = options.steps, options.rounds
    # The batch of a replica stays, and that of all replicas grows with them.
    config = config.replace(gpus=replicas)
    session, steps = prepare_steps(config, num_steps=(num_rounds + 1) * num_steps)
    fed, others = (steps.iterate(session.training_batches(0)) for _ in range(2))
    sources = {"fed": fed, "repeated": itertools.repeat(next(others))}
    times = time_rounds(steps, sources, num_steps=num_steps, num_rounds=num_rounds)
    images = num_steps * (session.config.input.global_batch_size or 0)
    (seconds, waited), (repeated, _) = times["fed"], times["repeated"]
    return {
        "replicas": replicas,
        "images_per_second": round(images / seconds, 1),
        "images_per_second_on_device": round(images / repeated, 1),
        "input_ratio": round(repeated / seconds, 4),
        "input_wait_share": round(waited, 4),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command."""
    flags.add_flags(parser, "benchmark", BenchmarkOptions)
    train_config.add_arguments(parser)


def benchmark(arguments: argparse.Namespace) -> None:
    """Measures each number of replicas, and prints and writes the table."""
    options = flags.from_flags(BenchmarkOptions, arguments)
    # Speed does not depend on the values of the weights. The batch of a replica must not depend on
    # how many there are.
    defaults = {"weights": "none", "replica_batch_size": 64}
    config = train_config.from_arguments(arguments, open_run, **defaults)
    with console.hide_native_noise():
        from train.machine.devices import configure_devices
        from train.training import trainer  # noqa: F401 - imports all that writes notes at import
    counts = [*map(int, options.replicas.split(","))]
    # Before minutes are spent on the smaller numbers.
    configure_devices(config.replace(gpus=max(counts)).devices)
    rows: list[dict[str, float]] = []
    print("  ".join(COLUMNS))
    for count in counts:
        row = measure(config, count, options)
        first = rows[0] if rows else row
        speedup = row["images_per_second"] / first["images_per_second"]
        efficiency = speedup * first["replicas"] / row["replicas"]
        rows.append(row | {"speedup": round(speedup, 3), "efficiency": round(efficiency, 3)})
        cells = (f"{rows[-1][name]:{form}}".rjust(len(name)) for name, form in COLUMNS.items())
        print("  ".join(cells), flush=True)
        if options.output:
            options.output.mkdir(parents=True, exist_ok=True)
            with (options.output / "scaling.csv").open("w", newline="") as file:
                table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                table.writeheader()
                table.writerows(rows)
            write_json(options.output / "scaling.json", rows)
    if options.output:
        print(f"the table is in {options.output}")


main = console.TrainerCommand(
    name="benchmark",
    purpose="Images a second by number of replicas.",
    usage="--data OUT [flags]",
    epilog="Any other flag of the command train may be given, too.",
    add_arguments=add_arguments,
    run=benchmark,
)

if __name__ == "__main__":
    sys.exit(main())
