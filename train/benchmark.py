"""Images a second by number of replicas: python train/benchmark.py --data OUT --replicas 1,2,4.

Each number of replicas is measured twice: fed by the reader, and with one batch that already
lies on the devices. The ratio of the two is what the input really costs. The rounds alternate, so
that a machine that slows down slows both. Exit codes: 0, or 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train import config as train_config
from train import console
from train.config import TrainConfig
from train.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from train.run_setup import Run
    from train.training.steps import Steps

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
class Speed:
    """What was measured with some replicas.

    Attributes:
        replicas: devices that train together.
        images_per_second: fed by the reader; the median of the rounds.
        images_per_second_on_device: with a batch that is on the devices; the median of the rounds.
        input_wait_share: of the time of the rounds that were fed by the reader.
    """

    replicas: int
    images_per_second: float
    images_per_second_on_device: float
    input_wait_share: float

    @property
    def input_ratio(self) -> float:
        """1 if the input costs nothing."""
        return self.images_per_second / self.images_per_second_on_device


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """A network on the devices of a run, ready to train.

    Attributes:
        run: to measure.
        steps: of the backend.
    """

    run: Run
    steps: Steps

    def batches(self, **fields: Any) -> Any:
        """Returns the training batches from the first step on, with fields changed."""
        from train.data import feed

        config = self.run.config.replace(**fields)
        return feed.training_batches(
            config.input,
            config.augmentation.mixup,
            self.run.devices,
            self.run.parts.train,
            start_step=0,
        )


def prepare(config: TrainConfig, *, replicas: int, num_steps: int) -> Session:
    """Builds a network to measure.

    Args:
        config: not resolved; its `replica_batch_size` stays, the global one grows.
        replicas: how many devices to use.
        num_steps: number of steps for which its batches last.

    Raises:
        ConfigError: if there are fewer devices.
    """
    from train.devices import set_seed
    from train.networks.build import build_network
    from train.networks.models import set_trainable
    from train.networks.optimizers import make_optimizer
    from train.run_setup import make_run
    from train.training.steps import make_steps

    set_seed(config.input.seed)
    run = make_run(config.replace(gpus=replicas), Path())
    wanted = num_steps * (run.config.input.global_batch_size or 0)
    epochs = wanted // run.parts.train.num_examples + 1
    run = dataclasses.replace(run, given=run.given.replace(epochs=epochs))
    network = build_network(run, run.config.devices.precision, weights=run.config.network.weights)
    set_trainable(network, phase="all", trainable_layers=run.config.network.trainable_layers)
    with run.devices.scope():
        optimizer = make_optimizer(
            run.config.optimizer,
            precision=run.config.devices.precision,
            learning_rate=1e-4,
            num_steps=num_steps,
        )
    return Session(run=run, steps=make_steps(run, network, optimizer))


def time_rounds(
    steps: Steps,
    sources: Mapping[str, Any],
    *,
    num_steps: int,
    num_rounds: int,
) -> dict[str, tuple[float, float]]:
    """Trains on batches of several sources by turns, after a round of each that does not count.

    Args:
        steps: that train.
        sources: iterators of the steps, by name.
        num_steps: of a round.
        num_rounds: of each source.

    Returns:
        for each source the median seconds of a round, and the share of all its seconds in which
        steps waited for input.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    waited = dict.fromkeys(sources, 0.0)
    for source in sources.values():
        steps.train(source, num_steps)  # builds the graph
    for _ in range(num_rounds):
        for name, source in sources.items():
            started = time.perf_counter()
            waited[name] += steps.train(source, num_steps).wait_seconds
            seconds[name].append(time.perf_counter() - started)
    return {
        name: (statistics.median(taken), waited[name] / sum(taken))
        for name, taken in seconds.items()
    }


def measure(config: TrainConfig, *, replicas: int, num_steps: int, num_rounds: int) -> Speed:
    """Measures training steps on some replicas.

    Args:
        config: not resolved; its `replica_batch_size` stays, the global one grows.
        replicas: how many devices to use.
        num_steps: of a round.
        num_rounds: of each kind; the median counts.

    Raises:
        ConfigError: if there are fewer devices.
    """
    session = prepare(config, replicas=replicas, num_steps=(num_rounds + 1) * num_steps)
    steps = session.steps
    times = time_rounds(
        steps,
        {
            "fed": steps.iterate(session.batches()),
            "repeated": steps.repeat_first(session.batches()),
        },
        num_steps=num_steps,
        num_rounds=num_rounds,
    )
    images = num_steps * (session.run.config.input.global_batch_size or 0)
    return Speed(
        replicas=replicas,
        images_per_second=images / times["fed"][0],
        images_per_second_on_device=images / times["repeated"][0],
        input_wait_share=times["fed"][1],
    )


def table(speeds: Sequence[Speed]) -> list[dict[str, float]]:
    """Returns a row for each measurement, with speed-up and efficiency against the first."""
    first = speeds[0]
    rows = []
    for speed in speeds:
        speedup = speed.images_per_second / first.images_per_second
        rows.append(
            {
                "replicas": speed.replicas,
                "images_per_second": round(speed.images_per_second, 1),
                "images_per_second_on_device": round(speed.images_per_second_on_device, 1),
                "input_ratio": round(speed.input_ratio, 4),
                "input_wait_share": round(speed.input_wait_share, 4),
                "speedup": round(speedup, 3),
                "efficiency": round(speedup * first.replicas / speed.replicas, 3),
            }
        )
    return rows


def draw(rows: Sequence[dict[str, float]], title: str) -> Figure:
    """Images a second by replicas, beside the line of perfect scaling."""
    from matplotlib.figure import Figure

    from train.results.charts import COLOURS

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(rows))
    for shift, column, label, colour in (
        (-0.2, "images_per_second", "fed by the reader", COLOURS[0]),
        (0.2, "images_per_second_on_device", "batch already on the devices", COLOURS[5]),
    ):
        bars = axes.bar(
            [place + shift for place in places],
            [row[column] for row in rows],
            width=0.38,
            color=colour,
            label=label,
        )
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=8)
    perfect = [
        rows[0]["images_per_second_on_device"] * row["replicas"] / rows[0]["replicas"]
        for row in rows
    ]
    axes.plot(places, perfect, "k:", label="perfect scaling")
    axes.set_xticks(places, [f"{row['replicas']:g}" for row in rows])
    axes.set_xlabel("replicas")
    axes.set_ylabel("images a second")
    axes.set_title(title)
    axes.legend(loc="upper left")
    axes.margins(y=0.15)
    return figure


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python train/benchmark.py", description="Images a second by number of replicas."
    )
    parser.add_argument("--replicas", default="1", metavar="N,N", help="such as 1,2,4 [1]")
    parser.add_argument("--steps", type=_positive, default=30, help="steps of a round [30]")
    parser.add_argument("--rounds", type=_positive, default=5, help="the median counts [5]")
    parser.add_argument("--output", metavar="DIR", help="folder for table (CSV, JSON) and plot")
    train_config.add_arguments(parser)
    arguments = parser.parse_args(argv)
    output = arguments.output
    console.set_defaults()
    try:
        counts = _parse_counts(arguments.replicas)
        # Speed does not depend on the values of the weights. The batch of a replica must not
        # depend on how many there are.
        common = {"weights": "none", "replica_batch_size": 64}
        config = train_config.from_arguments(common | train_config.given_fields(arguments), None)
        console.check_backend(os.environ["KERAS_BACKEND"])
        with console.hide_native_noise():
            from tfrecord_io import ManifestError
            from train.devices import configure_devices
            from train.training import trainer  # noqa: F401 - imports all that writes notes at import
        # Before minutes are spent on the smaller numbers.
        configure_devices(config.replace(gpus=max(counts)).devices)
    except ConfigError as error:
        return _complain(error)
    speeds = []
    try:
        for count in counts:
            speeds.append(
                measure(
                    config, replicas=count, num_steps=arguments.steps, num_rounds=arguments.rounds
                )
            )
            _print_row(table(speeds)[-1], header=len(speeds) == 1)
            if output:
                title = f"{config.network.model}, {config.input.replica_batch_size} a replica"
                _write(Path(output), table(speeds), title)
    except (ConfigError, ManifestError) as error:
        return _complain(error)
    if output:
        print(f"table and plot are in {output}")
    return 0


def _parse_counts(text: str) -> list[int]:
    if not all(part.isdigit() and int(part) > 0 for part in text.split(",")):
        raise ConfigError(f"--replicas must be numbers such as 1,2,4; received {text!r}")
    return [int(part) for part in text.split(",")]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, received {number}")
    return number


def _print_row(row: dict[str, float], *, header: bool) -> None:
    if header:
        print("  ".join(COLUMNS))
    cells = (f"{row[name]:{form}}".rjust(len(name)) for name, form in COLUMNS.items())
    print("  ".join(cells), flush=True)


def _write(directory: Path, rows: Sequence[dict[str, float]], title: str) -> None:
    from tfrecord_io.files import atomic_write
    from train.run_folder import write_json

    directory.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, tuple(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with atomic_write(directory / "scaling.csv") as file:
        file.write(text.getvalue().encode("utf-8"))
    write_json(directory / "scaling.json", rows)
    draw(rows, title).savefig(directory / "scaling.png", dpi=120)


def _complain(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
