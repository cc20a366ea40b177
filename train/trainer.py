"""The run: train, remember the best epoch, evaluate it once on the test split, export it.

`train_and_evaluate(config, workdir)` does it all and can be killed at any moment: called again
with the same configuration it goes on at the exact example. All that a run knows is in its
variables and in `Progress`; both are in the checkpoint, and everything else in the folder is
written from them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tfrecord_io
from tfrecord_io.shards import atomic_write
from train import callbacks, checkpoint, export, feed, plots, tracing
from train import config as train_config
from train import metrics as evaluate
from train.config import ConfigError, TrainConfig
from train.models import Network, build_network, set_trainable
from train.optimizers import make_optimizer
from train.steps import JaxSteps, TensorFlowSteps, make_steps
from train.strategy import Devices, configure_devices

CHECKPOINT_NAME = "checkpoint.npz"
BEST_NAME = "best.npz"
HISTORY_NAME = "history.json"
METRICS_NAME = "metrics.json"

Steps = TensorFlowSteps | JaxSteps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """Some epochs in which the same layers are trained by the same optimizer.

    Attributes:
        name: `head` or `all`, see `models.set_trainable`.
        first_epoch: counted from 0.
        last_epoch: of the phase, included.
        learning_rate: peak.
    """

    name: str
    first_epoch: int
    last_epoch: int
    learning_rate: float


@dataclasses.dataclass(kw_only=True)
class Progress:
    """Where a run stands; with the variables, all that is needed to go on.

    Attributes:
        step: training steps done.
        phase: name of the phase of the last step done.
        totals: sums over the epoch that is not finished.
        history: a row an epoch done.
        best_epoch: epoch of the best weights, counted from 1; 0 if there is none yet.
        best_value: of the quantity the best is best in, as a number that falls.
    """

    step: int = 0
    phase: str = ""
    totals: dict[str, float] = dataclasses.field(default_factory=dict)
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best_epoch: int = 0
    best_value: float | None = None

    @property
    def epoch(self) -> int:
        """The epoch to go on with, counted from 0."""
        return len(self.history)


def plan_phases(config: TrainConfig, *, has_backbone: bool) -> list[Phase]:
    """Returns the phases of a resolved configuration, in order.

    Args:
        config: resolved.
        has_backbone: whether there are layers below the head that can be frozen.
    """
    fine_tunes = has_backbone and config.pretrained
    head_epochs = (config.head_epochs or 0) if has_backbone else 0
    if fine_tunes and config.trainable_layers == 0:
        head_epochs = config.epochs
    rest_rate = config.fine_tune_learning_rate if fine_tunes else config.learning_rate
    phases = []
    if head_epochs:
        phases.append(
            Phase(
                name="head",
                first_epoch=0,
                last_epoch=head_epochs - 1,
                learning_rate=config.learning_rate,
            )
        )
    if head_epochs < config.epochs:
        phases.append(
            Phase(
                name="all",
                first_epoch=head_epochs,
                last_epoch=config.epochs - 1,
                learning_rate=rest_rate,
            )
        )
    return phases


def train_and_evaluate(config: TrainConfig, workdir: str | os.PathLike[str]) -> dict[str, Any]:
    """Trains, evaluates and exports; goes on where an earlier call with this folder stopped.

    Args:
        config: what to do.
        workdir: the folder of the run, made if it is missing.

    Returns:
        the content of metrics.json, see `metrics.evaluate_predictions`.

    Raises:
        ConfigError: if the configuration does not suit the data, the devices or the folder.
        tfrecord_io.ManifestError: if the dataset cannot be used.
        TrainingError: if the loss stops being a number, or a graph is traced again.
        StoppedError: after SIGTERM or SIGINT, with the state saved.
    """
    manifest = tfrecord_io.Manifest.load(config.data)
    num_examples = manifest.split("train").num_examples
    if not num_examples:
        raise ConfigError(f"the training split of {config.data} is empty; build it with images")
    keras.utils.set_random_seed(config.seed)
    devices = configure_devices(config)
    config = config.resolve(
        num_examples=num_examples,
        num_replicas=devices.num_replicas,
        precision=devices.best_precision,
        jit_compile=devices.best_jit_compile,
    )
    policy = config.precision if config.precision == "float32" else f"mixed_{config.precision}"
    keras.config.set_dtype_policy(policy)
    workdir = Path(workdir)
    with _claim(workdir, config, manifest, devices):
        if (workdir / METRICS_NAME).exists():
            _say(devices, f"{workdir} holds this run complete; nothing to do")
            return json.loads((workdir / METRICS_NAME).read_text(encoding="utf-8"))
        run = _Run(config, workdir, manifest, devices)
        run.train()
        return run.finish()


class _Run:
    """One call of `train_and_evaluate`: the network, its progress and the folder."""

    def __init__(
        self, config: TrainConfig, workdir: Path, manifest: tfrecord_io.Manifest, devices: Devices
    ) -> None:
        self._config = config
        self._workdir = workdir
        self._manifest = manifest
        self._devices = devices
        self._num_examples = manifest.split("train").num_examples
        val = manifest.splits.get("val")
        self._val_split = "val" if val is not None and val.num_examples else None
        facts = checkpoint.load_facts(workdir / CHECKPOINT_NAME)
        self._progress = Progress(**facts) if facts else Progress()
        self._network = self._build_network()
        self._phases = plan_phases(config, has_backbone=self._network.backbone is not None)
        if facts:
            checkpoint.restore(workdir / CHECKPOINT_NAME, {"model": self._variables})
        self._class_weights = (
            manifest.class_weights("train")
            if config.class_weights == "balanced"
            else (1.0,) * manifest.num_classes
        )
        self._announce()

    @property
    def _variables(self) -> list[keras.Variable]:
        # Includes the states of random generators and of batch normalization.
        return self._network.model.variables

    def _build_network(self) -> Network:
        config = self._config
        if self._progress.step:
            # The checkpoint overrides them all: no download, and the file may be gone.
            config = dataclasses.replace(config, weights="none")
        with self._devices.scope():
            return build_network(
                config,
                image_shape=self._manifest.image_shape,
                num_classes=self._manifest.num_classes,
            )

    def _announce(self) -> None:
        config, devices, progress = self._config, self._devices, self._progress
        shape = "x".join(str(side) for side in self._manifest.image_shape)
        _say(
            devices,
            f"{config.model}, {self._network.model.count_params():,} parameters, "
            f"{self._num_examples:,} training images of {shape}, "
            f"{self._manifest.num_classes} classes",
        )
        _say(
            devices,
            f"{devices.num_replicas} x {devices.names[0].split(':')[0]} on {devices.backend}, "
            f"{config.precision}; global batch {config.global_batch_size}, "
            f"{config.replica_batch_size} a replica; "
            f"{self._end_step(config.epochs - 1):,} steps in {config.epochs} epochs",
        )
        if self._val_split is None:
            _say(devices, "note: no validation images; the last epoch is kept, not the best")
        if progress.epoch == config.epochs:
            _say(devices, "the training is done; going on with the evaluation")
        elif progress.step:
            _say(devices, f"going on after step {progress.step:,}, in epoch {progress.epoch + 1}")

    def _end_step(self, epoch: int) -> int:
        return feed.end_step(
            epoch,
            num_examples=self._num_examples,
            global_batch_size=self._config.global_batch_size or 0,
        )

    def train(self) -> None:
        """Trains from where the progress stands to the last epoch."""
        config, progress = self._config, self._progress
        if progress.epoch == config.epochs:
            return
        directory = self._workdir / "tensorboard" if self._devices.is_chief else None
        board = callbacks.TensorBoardWriter(directory)
        batches: Any = None
        with (
            # With several workers one alone cannot stop between steps: all take part in each.
            callbacks.StopSignal(enabled=self._devices.num_workers == 1) as stop,
            callbacks.Watchdog(
                config.step_timeout, self._workdir / f"stacks-{self._devices.worker_index}.txt"
            ) as watchdog,
            tracing.Tracer(
                config.profile_steps, self._workdir / "profile", self._devices.backend
            ) as tracer,
            contextlib.closing(board),
        ):
            for phase in self._phases:
                if phase.last_epoch < progress.epoch:
                    continue
                steps, optimizer = self._start_phase(phase)
                if batches is None:
                    batches = steps.iterate(
                        feed.training_batches(
                            config,
                            self._devices,
                            num_examples=self._num_examples,
                            start_step=progress.step,
                        )
                    )
                guard = callbacks.RetraceGuard(config.on_retrace)
                loop = _Loop(steps, optimizer, batches, stop, watchdog, tracer, guard)
                while progress.epoch <= phase.last_epoch:
                    self._train_epoch(phase, loop)
                    board.write(progress.history[-1], progress.step)

    def _start_phase(self, phase: Phase) -> tuple[Steps, keras.optimizers.Optimizer]:
        config, progress = self._config, self._progress
        set_trainable(self._network, phase=phase.name, trainable_layers=config.trainable_layers)
        first_step = self._end_step(phase.first_epoch - 1)
        with self._devices.scope():
            optimizer = make_optimizer(
                config,
                learning_rate=phase.learning_rate,
                num_steps=self._end_step(phase.last_epoch) - first_step,
            )
        steps = make_steps(
            self._network,
            optimizer,
            self._devices,
            class_weights=self._class_weights,
            jit_compile=bool(config.jit_compile),
        )
        if progress.step > first_step:
            checkpoint.restore(self._workdir / CHECKPOINT_NAME, {"optimizer": optimizer.variables})
        trained = sum(
            int(np.prod(variable.shape)) for variable in self._network.model.trainable_variables
        )
        if len(self._phases) > 1:
            _say(self._devices, f"training {phase.name}: {trained:,} parameters")
        progress.phase = phase.name
        return steps, optimizer

    def _train_epoch(self, phase: Phase, loop: _Loop) -> None:
        config, progress = self._config, self._progress
        epoch, last_step = progress.epoch, self._end_step(progress.epoch)
        meter = (
            callbacks.EpochMeter.from_totals(progress.totals)
            if progress.totals
            else callbacks.EpochMeter()
        )
        bar = callbacks.ProgressBar(
            title=f"epoch {epoch + 1}/{config.epochs}",
            total=self._num_examples,
            done=int(meter.num_examples),
        )
        started, since_checkpoint = time.monotonic(), callbacks.Stopwatch()
        checkpoint_age = 0.0
        with contextlib.closing(bar):
            while progress.step < last_step:
                num_steps = min(config.steps_per_execution, last_step - progress.step)
                loop.tracer.before(progress.step + 1, num_steps)
                watch = callbacks.Stopwatch()
                results = loop.steps.train(loop.batches, num_steps)
                seconds = watch.lap()
                loop.watchdog.restart()
                callbacks.check_finite(results, progress.step + 1)
                progress.step += num_steps
                loop.tracer.after(progress.step)
                loop.guard.check(loop.steps.num_traces, progress.step)
                meter.add(results, seconds, timed=loop.warm)
                loop.warm = True
                progress.totals = meter.totals()
                bar.update(int(results.num_examples.sum()), meter.loss)
                checkpoint_age += since_checkpoint.lap()
                if progress.step < last_step and (
                    loop.stop.received is not None or checkpoint_age >= config.checkpoint_seconds
                ):
                    self._save_checkpoint(loop)
                    checkpoint_age = 0.0
                if loop.stop.received is not None and progress.step < last_step:
                    raise callbacks.StoppedError(loop.stop.received, progress.step)
        self._end_epoch(phase, loop, meter, time.monotonic() - started)
        if loop.stop.received is not None:
            raise callbacks.StoppedError(loop.stop.received, progress.step)

    def _end_epoch(
        self, phase: Phase, loop: _Loop, meter: callbacks.EpochMeter, seconds: float
    ) -> None:
        progress, devices = self._progress, self._devices
        loop.steps.sync()
        row: dict[str, Any] = {
            "epoch": progress.epoch + 1,
            "phase": phase.name,
            "step": progress.step,
            "loss": meter.loss,
            "accuracy": meter.accuracy,
        }
        if self._val_split:
            row |= self._validate(loop.steps)
        row |= {
            "learning_rate": float(keras.ops.convert_to_numpy(loop.optimizer.learning_rate)),
            "seconds": seconds,
            **meter.speed(),
            **callbacks.memory_megabytes(devices.backend, devices.on_gpu),
        }
        progress.history.append(row)
        progress.totals = {}
        # Without validation every epoch replaces the one before.
        value = {
            "val_loss": row.get("val_loss"),
            "val_accuracy": -row["val_accuracy"] if "val_accuracy" in row else None,
        }[self._config.best_by]
        if value is None or progress.best_value is None or value < progress.best_value:
            progress.best_epoch, progress.best_value = row["epoch"], value
            if devices.is_chief:
                checkpoint.save(self._workdir / BEST_NAME, {"model": self._variables}, {"row": row})
        self._save_checkpoint(loop)
        if devices.is_chief:
            _write_json(self._workdir / HISTORY_NAME, progress.history)
        _say(devices, _describe_epoch(row, self._config.epochs))
        share = row["input_wait_share"]
        if share is not None and share > callbacks.INPUT_BOUND_SHARE:
            _say(
                devices,
                f"warning: {share:.0%} of the time was spent waiting for input. Put the data on "
                "a local disk (engine mmap), or try a larger batch",
            )

    def _validate(self, steps: Steps) -> dict[str, float]:
        probabilities, labels = _predict(steps, self._config, self._devices, self._val_split or "")
        return {
            "val_loss": evaluate.cross_entropy(probabilities, labels),
            "val_accuracy": float(np.mean(probabilities.argmax(-1) == labels)),
        }

    def _save_checkpoint(self, loop: _Loop) -> None:
        loop.steps.sync()
        if self._devices.is_chief:
            checkpoint.save(
                self._workdir / CHECKPOINT_NAME,
                {"model": self._variables, "optimizer": loop.optimizer.variables},
                dataclasses.asdict(self._progress),
            )

    def finish(self) -> dict[str, Any]:
        """Evaluates the best epoch on the test split, exports it, and writes what came out."""
        config, devices, manifest = self._config, self._devices, self._manifest
        checkpoint.restore(self._workdir / BEST_NAME, {"model": self._variables})
        split = "test" if "test" in manifest.splits else self._val_split
        if split is None or not manifest.split(split).num_examples:
            raise ConfigError(
                f"{config.data} has neither a test nor a validation split to evaluate on; build "
                "it with one"
            )
        if split != "test":
            _say(devices, "note: no test split; these are the metrics of the validation split")
        steps = make_steps(
            self._network, None, devices, class_weights=self._class_weights, jit_compile=False
        )
        probabilities, labels = _predict(steps, config, devices, split)
        metrics: dict[str, Any] = {
            "split": split,
            "best_epoch": self._progress.best_epoch,
            "steps": self._progress.step,
        }
        if not devices.is_chief:
            return metrics
        examples = evaluate.read_examples(config.data, split)
        metrics |= evaluate.evaluate_predictions(
            probabilities,
            labels,
            manifest.label_names,
            groups=examples.patients,
            num_samples=config.bootstrap_samples,
            seed=config.seed,
        )
        evaluate.write_predictions(
            self._workdir / "predictions.csv", probabilities, labels, manifest.label_names, examples
        )
        export.export_model(
            self._network.model,
            self._workdir / export.FOLDER_NAME,
            manifest,
            precision=config.precision,
        )
        plots.write_plots(
            self._workdir / "plots",
            self._progress.history,
            metrics,
            probabilities,
            labels,
            manifest.label_names,
        )
        # Last: its presence means that the run is complete.
        _write_json(self._workdir / METRICS_NAME, metrics)
        print(evaluate.describe(metrics))
        print(f"model, plots and metrics are in {self._workdir}")
        return metrics


@dataclasses.dataclass
class _Loop:
    """What the epochs of a phase share."""

    steps: Steps
    optimizer: keras.optimizers.Optimizer
    batches: Any
    stop: callbacks.StopSignal
    watchdog: callbacks.Watchdog
    tracer: tracing.Tracer
    guard: callbacks.RetraceGuard
    warm: bool = False


def _predict(
    steps: Steps, config: TrainConfig, devices: Devices, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (probabilities float32 [num_examples, num_classes], label indices) of a split."""
    batches = steps.iterate(feed.evaluation_batches(config, devices, split))
    parts = list(steps.predict(batches))
    probabilities = np.concatenate([rows for rows, _ in parts])
    return probabilities, np.concatenate([labels for _, labels in parts]).argmax(-1)


@contextlib.contextmanager
def _claim(
    workdir: Path, config: TrainConfig, manifest: tfrecord_io.Manifest, devices: Devices
) -> Iterator[None]:
    """Makes the folder this run's own, or refuses one that belongs to another.

    Raises:
        ConfigError: if the folder has another configuration, or another process trains in it.
    """
    if not devices.is_chief:
        yield
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock = (workdir / ".lock").open("w")
    except OSError as error:
        raise ConfigError(f"--workdir {workdir} cannot be written to: {error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"another process trains in {workdir}; wait for it, or use another --workdir"
            ) from None
        path = workdir / train_config.FILE_NAME
        dataset = {"name": manifest.name, "fingerprint": manifest.fingerprint}
        backend = keras.backend.backend()
        ours = config.to_dict() | {"dataset": manifest.fingerprint, "backend": backend}
        if path.exists():
            theirs = train_config.load_fields(path)
            content = json.loads(path.read_text(encoding="utf-8"))
            theirs["dataset"] = content["dataset"]["fingerprint"]
            theirs["backend"] = content["backend"]
            changed = train_config.differences(ours, theirs)
            if changed:
                raise ConfigError(
                    f"{workdir} holds a run of another configuration:\n  "
                    + "\n  ".join(changed)
                    + "\nUse another --workdir, or remove that folder"
                )
        elif any(entry.name != ".lock" for entry in workdir.iterdir()):
            raise ConfigError(
                f"{workdir} is not empty and holds no {train_config.FILE_NAME}: it is no folder "
                "of a run. Use another --workdir"
            )
        content = {
            "config": config.to_dict(),
            "dataset": dataset,
            "backend": backend,
            "num_replicas": devices.num_replicas,
            "versions": _versions(),
        }
        _write_json(path, content)
        yield


def _versions() -> dict[str, str]:
    import tensorflow as tf

    versions = {
        "python": sys.version.split()[0],
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
    }
    if keras.backend.backend() == "jax":
        import jax

        versions["jax"] = jax.__version__
    return versions


def _describe_epoch(row: Mapping[str, Any], epochs: int) -> str:
    parts = [
        f"epoch {row['epoch']}/{epochs}",
        f"loss {row['loss']:.4f}",
        f"accuracy {row['accuracy']:.1%}",
    ]
    if "val_loss" in row:
        parts += [f"val_loss {row['val_loss']:.4f}", f"val_accuracy {row['val_accuracy']:.1%}"]
    if row["images_per_second"] is not None:
        parts += [f"{row['images_per_second']:,.0f} images/s", f"{row['step_ms']:.1f} ms a step"]
    if row["input_wait_share"] is not None:
        parts.append(f"input-bound {row['input_wait_share']:.1%}")
    parts.append(f"{row['peak_rss_mb']:,.0f} MB")
    if "peak_gpu_mb" in row:
        parts.append(f"GPU {row['peak_gpu_mb']:,.0f} MB")
    return " · ".join(parts)


def _write_json(path: Path, content: Any) -> None:
    with atomic_write(path) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode("utf-8"))


def _say(devices: Devices, text: str) -> None:
    if devices.is_chief:
        print(text, file=sys.stderr if text.startswith("warning") else sys.stdout, flush=True)
