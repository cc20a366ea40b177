"""How far a run has come: its position and history, and the lines it prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from tfrecord_io import flags
from tfrecord_io.auditing.findings import alarms
from tfrecord_io.printing import counted, printable
from train.run_setup import Run


@dataclasses.dataclass(kw_only=True)
class Progress:
    """Where a run stands; with the variables, all that is needed to go on.

    Attributes:
        step: training steps done.
        phase: name of the phase of the last step done.
        totals: sums over the epoch that is not finished.
        history: one row for each finished epoch.
        best_epoch: epoch of the weights that are kept, counted from 1; 0 if there is none yet.
        best_value: validation loss, or minus the accuracy, of that epoch: smaller is better.
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


def describe_run(run: Run, progress: Progress, num_parameters: int) -> Iterator[str]:
    """Yields the lines that are printed before a training starts or goes on."""
    config, devices, parts, manifest = run.config, run.devices, run.parts, run.data.manifest
    options = config.input
    shape = "x".join(str(side) for side in manifest.image_shape)
    kind = manifest.label_kind
    labels = kind.noun if manifest.num_classes == 1 else kind.plural
    yield (
        f"{config.network.model}, {num_parameters:,} parameters, {parts.train.num_examples:,} "
        f"training {'images' if run.data.trunk is None else 'features'} of {shape}, "
        f"{manifest.num_classes} {labels}"
    )
    yield (
        f"{devices.num_replicas} x {devices.names[0].split(':')[0]} on {devices.backend}, "
        f"{config.devices.precision}; {options.global_batch_size} images a step, "
        f"{options.replica_batch_size} on each device; "
        f"{run.steps_after[-1]:,} steps in {options.epochs} epochs"
    )
    if (weights := parts.train.weights) is not None:
        yield (
            f"images count by the column weight of the table of labels: {weights.min():.3g} to "
            f"{weights.max():.3g} times the mean"
        )
    for alarm in alarms(manifest.audit):
        yield f"warning: {printable(alarm)}"
    exposure = run.exposure
    if exposure and not exposure.is_measured:
        yield (
            f"the trunk has seen images of {parts.evaluated.name} or others of their patients: "
            f"{counted(exposure.num_images, 'image')} of "
            f"{counted(exposure.num_patients, 'patient')} are left out of the measures"
        )
    if parts.val is None:
        yield "note: there are no validation images, so the last epoch is kept"
    if parts.evaluated is None:
        yield (
            "note: there are no test images either, so this run ends with the exported model "
            f"and without metrics; {flags.command('evaluate')} measures it on another dataset, "
            "or build this one with --splits patient"
        )
    elif parts.test is None:
        yield "note: there is no test split; the metrics will be of the validation"
    if progress.epoch == options.epochs:
        yield "the training is done; going on with the evaluation"
    elif progress.step:
        yield f"going on after step {progress.step:,}, in epoch {progress.epoch + 1}"


# Format of each quantity of history.json in the line that is printed for an epoch.
_EPOCH_FORMATS = {
    "loss": ".4f", "accuracy": ".1%", "mae": ".4g",
    "val_loss": ".4f", "val_accuracy": ".1%", "val_mae": ".4g",
}  # fmt: skip


def describe_epoch(row: Mapping[str, Any], epochs: int) -> str | None:
    """Returns the line that is printed for an epoch, given its row of history.json.

    A long run prints about 20; None for an epoch without one.
    """
    if row["epoch"] % max(1, epochs // 20) and row["epoch"] != epochs:
        return None
    parts = [
        f"epoch {row['epoch']}/{epochs}",
        *(f"{name} {row[name]:{digits}}" for name, digits in _EPOCH_FORMATS.items() if name in row),
    ]
    if row["images_per_second"] is not None:
        parts += [f"{row['images_per_second']:,.0f} images/s", f"{row['step_ms']:.1f} ms a step"]
    if row["input_wait_share"] is not None:
        parts.append(f"waiting for data {row['input_wait_share']:.1%}")
    parts.append(f"{row['peak_rss_mb']:,.0f} MB")
    if "peak_gpu_mb" in row:
        parts.append(f"GPU {row['peak_gpu_mb']:,.0f} MB")
    return " · ".join(parts)


def describe_seconds(seconds: float) -> str:
    """Returns a duration in words, such as `7 minutes`."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
