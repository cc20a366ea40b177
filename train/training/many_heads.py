"""The heads of a cross-validation, all trained side by side by one program.

Where the layers between a trunk and the head have no weights, as after pooling, a run trains a few
thousand weights on features that fit into memory, and its time goes into starting steps. So the
weights of all runs (folds x seeds) are stacked, with the runs as their first axis, and each step
takes a batch of every run. A run has the batches, random numbers, rates and length that it has
alone, and thus the same result, but for the rounding of sums.

Each run gets the folder that it would have after its last step, before the export, and its
predictions. Nothing is saved earlier, so a stopped cross-validation starts again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

import tfrecord_io
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.reading.order import BatchOrder
from tfrecord_io.trunk import Trunk
from train.config import TrainConfig
from train.data import feed
from train.data.examples import read_examples
from train.data.parts import Part
from train.data.stacked_feed import Source, Table, training_batches
from train.devices import Devices, set_precision, set_seed
from train.measuring.predictions import PREDICTIONS_NAME, Predictions, write_predictions
from train.measuring.tasks import Task, task_of
from train.networks import features
from train.networks.models import Network
from train.networks.optimizers import averaged_weights, make_stacked_optimizer
from train.networks.stacked import stack_networks
from train.run_folder import CHECKPOINT_NAME, HISTORY_NAME, claim, write_json
from train.training import callbacks, checkpoint, single_run
from train.training.progress import Progress, plan_phases
from train.training.steps import Objective, StepResults, make_steps

#: Limit on the bytes of the features of a dataset, those in a step, and all heads.
MAX_BYTES = 2 * 1024**3

# The weights, their gradients, two moments and the moving average.
_COPIES = 5


@dataclasses.dataclass(kw_only=True, eq=False)
class Head:
    """One run of the cross-validation, and where it stands.

    Attributes:
        folder: of the run.
        config: resolved.
        learnt: the examples to learn from.
        held_out: the examples to predict at the end.
        task: what it learns; numbers are scaled by the mean and deviation of its own examples.
        order: the batches, as places in `learnt.examples`.
        network: in float32, untrained; runs of the same seed share it. The task of each run says
            what its `logits` mean.
        best: values of the network's trainable variables after the last epoch.
        progress: of the run.
        meter: of the epoch that is not finished.
    """

    folder: Path
    config: TrainConfig
    learnt: Part
    held_out: Part
    task: Task
    order: BatchOrder
    network: Network
    best: list[np.ndarray] = dataclasses.field(default_factory=list)
    progress: Progress = dataclasses.field(default_factory=Progress)
    meter: callbacks.EpochMeter = dataclasses.field(default_factory=callbacks.EpochMeter)

    def end_step(self, epoch: int) -> int:
        """Returns how many steps are done when an epoch, counted from 0, is."""
        return feed.end_step(
            epoch,
            num_examples=self.order.num_examples,
            global_batch_size=self.order.batch_size,
        )


def plan_heads(
    runs: Sequence[tuple[Path, TrainConfig]],
    manifest: tfrecord_io.Manifest,
    trunk: Trunk,
    devices: Devices,
) -> list[Head] | None:
    """Returns the runs as heads; says why and returns None if they must be trained one by one.

    Args:
        runs: folder and configuration of each run: all folds with the first seed, then with the
            next.
        manifest: of the features.
        trunk: that made them.
        devices: of the runs.

    Raises:
        ConfigError: see `single_run.plan_run`.
    """
    heads: list[Head] = []
    if trunk.rest_layers:
        obstacle = f"layers above {trunk.layer} learn as well"
    elif devices.num_replicas > 1:
        obstacle = f"there are {devices.num_replicas} replicas; --strategy single uses one"
    else:
        heads = _heads_of(runs, manifest, trunk, devices)
        obstacle = _find_obstacle(heads, manifest)
    if obstacle:
        devices.say(f"the runs are trained one by one, because {obstacle}")
        return None
    return heads


def _heads_of(
    runs: Sequence[tuple[Path, TrainConfig]],
    manifest: tfrecord_io.Manifest,
    trunk: Trunk,
    devices: Devices,
) -> list[Head]:
    set_precision("float32")
    plans = {
        config.fold: single_run.plan_run(config, manifest, devices)
        for config in {config.fold: config for _, config in runs}.values()
    }
    networks: dict[int, Network] = {}
    heads = []
    for folder, config in runs:
        # The seed is all in which the runs of a fold differ.
        parts, task, resolved = plans[config.fold]
        config = dataclasses.replace(resolved, seed=config.seed)
        learnt, held_out = parts.train, parts.test
        assert held_out is not None
        if config.seed not in networks:
            set_seed(config.seed)
            networks[config.seed] = features.build_network(
                config, trunk, manifest, task_of(manifest.label_kind)
            )
        heads.append(
            Head(
                folder=folder,
                config=config,
                learnt=learnt,
                held_out=held_out,
                task=task,
                order=BatchOrder(
                    num_examples=learnt.num_examples,
                    batch_size=config.global_batch_size or 0,
                    seed=config.seed,
                    epochs=config.epochs,
                    pad_remainder=True,
                ),
                network=networks[config.seed],
            )
        )
    return heads


def _find_obstacle(heads: Sequence[Head], manifest: tfrecord_io.Manifest) -> str | None:
    """Returns what keeps heads from being trained side by side, or None."""
    config = heads[0].config
    if config.precision == "float16":
        return "--precision float16 scales the loss of a run by its own gradients"
    if config.profile:
        return "--profile traces the steps of a single run"
    batch_sizes = {head.order.batch_size for head in heads}
    if len(batch_sizes) > 1:
        return f"their batches have {batch_sizes} examples; set --replica_batch_size"
    num_examples = sum(manifest.split(name).num_examples for name in heads[0].learnt.splits)
    in_step = 4 * math.prod(manifest.image_shape) * sum(head.order.batch_size for head in heads)
    in_heads = 4 * _COPIES * sum(head.network.logits.count_params() for head in heads)
    needed = num_examples * manifest.layout.image_length + in_step + in_heads
    if needed > MAX_BYTES:
        return f"they would take {needed / 1e9:.1f} GB; the limit is {MAX_BYTES / 1e9:.1f} GB"
    return None


def train_heads(
    heads: Sequence[Head], workdir: Path, manifest: tfrecord_io.Manifest, devices: Devices
) -> None:
    """Trains all heads and writes the folder of each run, its predictions last.

    Args:
        heads: the result of `plan_heads`.
        workdir: folder of the cross-validation, where the stacks of a step that hangs are written.
        manifest: of the features.
        devices: of the runs.

    Raises:
        ConfigError: if a folder holds another run.
        TrainingError: if a loss stops being a number, or a graph is traced again.
        StoppedError: after SIGTERM or SIGINT, with nothing saved.
    """
    devices.say(
        f"all {len(heads)} heads are trained side by side, as one program of "
        f"{max(len(head.order) for head in heads):,} steps"
    )
    for head in heads:
        # Now, because the training is lost if a folder turns out to be of another run.
        with claim(head.folder, head.config, manifest, devices):
            pass
    watch = callbacks.Stopwatch()
    dataset = MappedDataset(heads[0].config.data, heads[0].learnt.splits)
    table = Table(*dataset[np.arange(len(dataset))])
    _train(heads, table, workdir, manifest, devices)
    seconds = watch.lap()
    for head in heads:
        with claim(head.folder, head.config, manifest, devices):
            _write(head, table, manifest)
    folder = heads[0].folder
    devices.say(
        f"trained in {seconds:.1f} seconds; to export the model of a run: python train/run.py "
        f"--config {folder / 'config.json'} --workdir {folder}"
    )


def _train(
    heads: Sequence[Head],
    table: Table,
    workdir: Path,
    manifest: tfrecord_io.Manifest,
    devices: Devices,
) -> None:
    """Trains all heads to their ends, which are not all at the same step."""
    config = heads[0].config
    (phase,) = plan_phases(config, has_backbone=True)
    set_precision(config.precision)
    with devices.scope():
        network = stack_networks([head.network for head in heads], heads[0].order.batch_size)
        optimizer = make_stacked_optimizer(
            [head.config for head in heads],
            learning_rate=phase.learning_rate,
            num_steps=[len(head.order) for head in heads],
        )
    steps = make_steps(
        network,
        optimizer,
        devices,
        objective=_stack_objectives(heads),
        jit_compile=bool(config.jit_compile),
    )
    sources = [
        Source(head.config, head.order, head.learnt.examples, head.learnt.weights) for head in heads
    ]
    batches = steps.iterate(training_batches(sources, table, manifest, devices))
    num_shown = sum(head.order.num_examples * (head.config.epochs or 0) for head in heads)
    bar = callbacks.progress_bar(total=num_shown, done=0)
    guard = callbacks.RetraceGuard(config.on_retrace)
    step = 0
    watch = callbacks.Stopwatch()
    with (
        contextlib.closing(bar),
        callbacks.StopSignal() as stop,
        callbacks.Watchdog(
            config.step_timeout, workdir / f"stacks-{devices.worker_index}.txt"
        ) as watchdog,
    ):
        for last_step in _call_ends(heads):
            results = steps.train(batches, last_step - step)
            steps.sync()
            watchdog.restart()
            losses = results.loss_sums.sum(axis=1)
            callbacks.check_finite(losses, step + 1)
            guard.check(steps.num_traces, last_step)
            seconds = watch.lap()
            rates = keras.ops.convert_to_numpy(optimizer.learning_rate)[:, 0, 0]
            running = [index for index, head in enumerate(heads) if step < len(head.order)]
            for index in running:
                head = heads[index]
                head.meter.add(_results_of(results, index), seconds, timed=step > 0)
                if last_step == head.end_step(head.progress.epoch):
                    _end_epoch(head, phase.name, last_step, float(rates[index]), devices)
            done = [index for index in running if len(heads[index].order) == last_step]
            if done:
                trained = network.logits.trainable_variables
                with averaged_weights(optimizer, trained):
                    values = [variable.numpy() for variable in trained]
                for index in done:
                    heads[index].best = [value[index] for value in values]
            num_examples = results.num_examples.sum()
            bar.set_postfix_str(f"loss {losses.sum() / num_examples:.4f}", refresh=False)
            bar.update(int(num_examples))
            step = last_step
            if stop.received is not None:
                raise callbacks.StoppedError(
                    stop.received,
                    step,
                    "nothing is saved of heads that are trained side by side; run the same "
                    "command again to begin anew",
                )


def _call_ends(heads: Sequence[Head]) -> list[int]:
    """Returns the steps at which a call of the graph ends.

    These are the ends of the epochs of all runs, because folds differ in size. With a timeout there
    are more: the watchdog sees that a call has ended, and not that a step has.
    """
    config = heads[0].config
    ends = {head.end_step(epoch) for head in heads for epoch in range(head.config.epochs or 0)}
    if config.step_timeout:
        ends |= set(range(config.steps_per_execution, max(ends), config.steps_per_execution))
    return sorted(ends)


def _stack_objectives(heads: Sequence[Head]) -> Objective:
    config = heads[0].config
    power = config.class_weight_power if config.class_weights == "balanced" else 0.0
    weights = [
        head.task.class_weights(head.learnt.label_counts, head.learnt.num_examples, power)
        for head in heads
    ]
    task = heads[0].task.side_by_side([head.task for head in heads])
    # The weights of a run are the same for its whole batch.
    return Objective.from_config(config, [(of_run,) for of_run in weights], task=task)


def _results_of(results: StepResults, index: int) -> StepResults:
    """Returns what some steps gave for one run."""
    return dataclasses.replace(
        results,
        loss_sums=results.loss_sums[:, index],
        num_correct=results.num_correct[:, index],
        num_examples=results.num_examples[:, index],
    )


def _end_epoch(head: Head, phase: str, step: int, rate: float, devices: Devices) -> None:
    """Adds a row to a run's history. Its times are those of all runs together."""
    progress, meter = head.progress, head.meter
    row = {
        "epoch": progress.epoch + 1,
        "phase": phase,
        "step": step,
        "loss": meter.loss,
        head.task.quantity: meter.accuracy,
        "learning_rate": rate,
        "seconds": meter.seconds,
        **meter.speed(),
        **callbacks.memory_megabytes(devices.backend, devices.on_gpu),
    }
    progress.history.append(row)
    progress.step, progress.phase, progress.best_epoch = step, phase, row["epoch"]
    head.meter = callbacks.EpochMeter()


def _write(head: Head, table: Table, manifest: tfrecord_io.Manifest) -> None:
    """Writes the files of a trained run."""
    model = head.network.model
    trained = head.network.logits.trainable_variables
    for variable, value in zip(trained, head.best, strict=True):
        variable.assign(value.reshape(variable.shape))
    with contextlib.closing(callbacks.TensorBoardWriter(head.folder / "tensorboard")) as board:
        for row in head.progress.history:
            board.write(row, row["step"])
    write_json(head.folder / HISTORY_NAME, head.progress.history)
    # After the last step, only the weights to export matter.
    checkpoint.save(
        head.folder / CHECKPOINT_NAME,
        {"model": model.variables, "best": model.variables},
        dataclasses.asdict(head.progress),
    )
    places = head.held_out.examples
    logits = head.network.logits(np.float32(table.images[places]), training=False)
    predictions = Predictions(
        task=head.task,
        probabilities=keras.ops.convert_to_numpy(head.task.activation()(logits)),
        truths=head.task.truths(table.labels[places]),
        examples=read_examples(head.config.data, head.held_out.splits, places),
    )
    write_predictions(head.folder / PREDICTIONS_NAME, predictions, manifest.label_names)
