"""All that a training is about, in one object that is made once and passed whole; its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

import tfrecord_io
from tfrecord_io.stores import file_lock, replace
from tfrecord_io.stores.files import sync_folder, write_json
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.address import is_inside, is_remote
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.flags import command
from train.data.dataset import Dataset, Parts, choose_parts, open_dataset
from train.data.feed import training_batches
from train.data.seen import Exposure, Seen, collect, expose, read_seen
from train.kinds.registry import task_of
from train.kinds.task import Task
from train.machine import console
from train.machine.devices import Devices, configure_devices, versions
from train.networks.models import Network, build_network
from train.training import config as train_config
from train.training.checkpoint import CHECKPOINT_NAME
from train.training.config import TrainConfig
from train.training.first_weights import FirstWeights
from train.training.mirror import Mirror, opened
from train.training.own_files import OWN_FILES


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """All that a training is about; what follows from the data is read when it is asked for.

    `given` is the configuration with its open decisions, `folder` that of the run's files. `home`
    is the folder of the whole run, where this is one of a cross-validation.
    """

    given: TrainConfig
    folder: Path
    home: Path
    data: Dataset
    devices: Devices
    mirror: Mirror | None = None  # uploads the folder, if its home is a URL

    @property
    def address(self) -> str:
        """The folder as the user gave it, a path or a URL."""
        copy, there = (str(self.mirror.folder), self.mirror.url) if self.mirror else ("", "")
        return str(self.folder).replace(copy, there, 1)

    def upload(self) -> None:
        """Uploads what is new in the folder, if its home is a URL.

        This follows each checkpoint, so that a run which this one replaces can go.
        """
        is_first = replace.forget(Folder(self.home))
        if self.mirror:
            self.mirror.upload(self.folder, replaces=is_first)

    @functools.cached_property
    def parts(self) -> Parts:
        """What the run trains on, validates on and tests on; raises `UserError`."""
        return choose_parts(self.data, self.given.folds)

    @functools.cached_property
    def seen(self) -> Seen:
        """The images that the run sees."""
        weights, unknown = self.given.network.weights, ""
        if weights not in (None, "imagenet", "none"):
            unknown = f"its first weights are from elsewhere ({Path(weights).name})"
        used = {"train": self.parts.train, "val": self.parts.val}
        seen = collect(self.data, {name: part.rows for name, part in used.items() if part}, unknown)
        init = self.given.network.init
        return seen.after(read_seen(opened(init))) if init else seen

    @functools.cached_property
    def first(self) -> FirstWeights | None:
        """The weights of `--init`, if it is given; raises `UserError`."""
        init = self.given.network.init
        return FirstWeights.of(init, self.data.manifest) if init else None

    @functools.cached_property
    def exposure(self) -> Exposure | None:
        """How much it sees of the part that it evaluates; None if there is none.

        Of a cross-validation: how much the runs of one seed see of the folds that they hold out.
        """
        is_one = not self.given.folds.is_cross_validation
        # That validation images were watched is said elsewhere.
        looks = [
            (run.seen if run.parts.test else run.seen.without("val"), run.parts.evaluated.rows)
            for run in ([self] if is_one else self.singles[: self.given.folds.folds])
            if run.parts.evaluated
        ]
        return expose(self.data, looks, is_measured=True) if looks else None

    @functools.cached_property
    def singles(self) -> list[Run]:
        """The runs of a cross-validation, all folds of the first seed first."""
        seed, folds = self.given.input.seed, self.given.folds
        return [
            dataclasses.replace(
                self,
                given=self.given.replace(fold=fold, seed=seed, seeds=1),
                folder=self.folder / f"seed-{seed}" / f"fold-{fold}",
            )
            for seed in range(seed, seed + folds.seeds)
            for fold in range(folds.folds or 0)
        ]

    @functools.cached_property
    def task(self) -> Task:
        """What the run learns; raises `UserError`."""
        return task_of(self.data.manifest.label_kind).fitted(self.data, self.parts.train)

    @functools.cached_property
    def config(self) -> TrainConfig:
        """The configuration with every decision made; raises `UserError`, see `resolve`."""
        return self.resolve()

    def resolve(self) -> TrainConfig:
        """Returns the configuration with every decision made; of a cross-validation, as given.

        Raises:
            UserError: if the configuration does not suit the data or the devices.
        """
        manifest, given = self.data.manifest, self.given
        # They are used at the end of the run; a wrong one is told now.
        views = task_of(manifest.label_kind).views(manifest.label_names)
        given.measures.prevalences([view.name for view in views])
        if given.folds.is_cross_validation:
            # A fold that cannot be trained does not waste the time of those before it.
            for single in self.singles[: given.folds.folds]:
                single.resolve()
            return given
        init, workdir = given.network.init, self.mirror.url if self.mirror else str(self.home)
        if init and is_inside(init, workdir):
            raise UserError(
                f"--init {init} is in --workdir {workdir}, where this run would replace it; choose "
                "another --workdir"
            )
        _ = self.first  # a run that cannot be started from is refused here
        # Labels from which nothing can be learnt are refused here, before a folder is made.
        quantity = self.task.quantity
        if given.loop.best_by == "val_accuracy" and quantity != "accuracy":
            raise UserError("--best_by val_accuracy needs classes or labels; use val_loss")
        return given.resolve(self.parts.train.num_examples, self.devices)

    def training_batches(self, start_step: int) -> Any:
        """Returns the training batches from a step on, see `feed.training_batches`."""
        options, mixup = self.config.input, self.config.augmentation.mixup
        return training_batches(
            options, mixup, self.devices, self.parts.train, start_step=start_step
        )

    def build_network(
        self,
        precision: str,
        *,
        weights: str | None = "none",
        temperature: float = 1.0,
        is_final: bool = False,
    ) -> Network:
        """Builds the network on the devices.

        Args:
            precision: arithmetic of the layers, such as `float32` or `bfloat16`.
            weights: see `NetworkOptions`; "none" where a checkpoint overrides them all.
            temperature: see `models.build_network`, also for what is raised.
            is_final: whether it is the one to export.
        """
        keras.config.set_dtype_policy(precision if precision == "float32" else f"mixed_{precision}")
        manifest, devices = self.data.manifest, self.devices
        # TensorFlow's replicas see their own share of a batch, JAX's all of it. Other backends
        # refuse to load a network whose layers ask the other replicas.
        exchanges = devices.backend == "tensorflow" and devices.num_replicas > 1
        with devices.scope():
            return build_network(
                dataclasses.replace(self.config.network, weights=weights),
                image_shape=manifest.image_shape,
                num_classes=manifest.num_classes,
                seed=self.config.input.seed,
                task=self.task,
                image_dtype=manifest.dtype,
                grey_factor=self.grey_factor,
                statistics=self.statistics,
                is_padded=manifest.is_padded,
                temperature=temperature,
                synchronized=exchanges and not is_final,
            )

    @functools.cached_property
    def statistics(self) -> tfrecord_io.PixelStatistics | None:
        """Of the training pixels; None if the network is not normalized by them."""
        if self.config.network.normalize != "data":
            return None
        return self.data.statistics(self.parts.train)

    @functools.cached_property
    def grey_factor(self) -> float:
        """What turns stored values into grey levels of about 0..255.

        Augmentation and published weights count in such levels. Few 16-bit images use their whole
        range, so the mean plus four standard deviations of the training pixels becomes 255.
        """
        manifest = self.data.manifest
        if manifest.dtype != "uint16" or manifest.statistics is None:
            return 1.0
        # Of a fold, those of its own training images.
        pixels = self.data.statistics(self.parts.train)
        top = max(mean + 4 * std for mean, std in zip(pixels.mean, pixels.std, strict=True))
        return 255 / min(max(top, 1.0), 65_535.0)

    @functools.cached_property
    def steps_after(self) -> list[int]:
        """The number of steps done after 0, 1, 2, ... and all epochs.

        An epoch ends with the step of its last example. That step may also hold the first examples
        of the next epoch, because epochs are not rounded up to whole batches.
        """
        options = self.config.input
        return [
            math.ceil(epoch * self.parts.train.num_examples / (options.global_batch_size or 1))
            for epoch in range((options.epochs or 0) + 1)
        ]


def make_run(config: TrainConfig, folder: Path, mirror: Mirror | None = None) -> Run:
    """Sets up the devices and opens the dataset; nothing is written to the folder yet.

    Raises:
        UserError: if the configuration does not suit the devices or the kind of dataset.
        tfrecord_io.ManifestError: if the dataset cannot be used.
    """
    devices = configure_devices(config.devices)
    data = open_dataset(config.input.data_path, config.measures.columns)
    if cache := is_remote(data.path) and data.stored.cache:
        devices.say(cache.describe())
    given = config.with_model(data.manifest.image_shape)
    return Run(given=given, folder=folder, home=folder, data=data, devices=devices, mirror=mirror)


@contextlib.contextmanager
def claim(run: Run, *, overwrite: bool = False) -> Iterator[None]:
    """Locks the folder of a run, made if it is missing, and writes its config.json.

    Only the chief does so. What another configuration left is replaced if it never came to a
    checkpoint, or with `overwrite`; then it comes back if the block ends before a checkpoint.

    Raises:
        UserError: if the folder cannot be written, belongs to a run of another configuration, is
            not a run folder, or another process trains in it.
    """
    workdir, address, manifest = run.folder, run.address, run.data.manifest
    if overwrite and run.devices.num_workers > 1:
        raise UserError("--overwrite would remove what other workers read; remove the folder")
    # First of all: a configuration that does not suit the data is refused before a folder is made.
    content = {
        "config": run.config.to_dict(),
        "dataset": {"name": manifest.name, "fingerprint": manifest.fingerprint},
        "backend": keras.backend.backend(),
        "num_replicas": run.devices.num_replicas,
        "versions": versions(),
    }
    if not run.devices.is_chief:
        yield
        return
    lock = file_lock.held(workdir / ".lock", f"training in {address}", UserError)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock)
        except OSError as error:
            raise UserError(f"--workdir {address} cannot be written to: {error}") from error
        # A killed process leaves temporary files; the lock ensures that no other process writes.
        for leftover in workdir.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        settle = functools.partial(replace.settle, Folder(workdir), OWN_FILES)
        settle()
        path = workdir / train_config.FILE_NAME
        is_replacing = overwrite and path.exists()
        if path.exists():
            there = train_config.load(path)
            has_begun = not overwrite and any(workdir.rglob(CHECKPOINT_NAME))
            if has_begun and (changed := train_config.differences(content, there)):
                is_other_data = any(line.startswith("dataset:") for line in changed)
                asked = f". {command('diff')} OLD NEW tells how two datasets differ"
                raise UserError(
                    f"{address} contains a run with another configuration:\n  "
                    + "\n  ".join(changed)
                    + "\nUse another --workdir, or replace that run with --overwrite"
                    + (asked if is_other_data else "")
                )
            if overwrite:
                stack.enter_context(console.cleaned_up(settle))
                replace.set_aside(Folder(workdir), OWN_FILES)
        elif any(entry.name != ".lock" for entry in workdir.iterdir()):
            raise UserError(
                f"{address} is not empty and has no {train_config.FILE_NAME}: it is not a run "
                "folder. Use another --workdir"
            )
        write_json(path, content)
        # A folder with a checkpoint, but without this file, would be refused after a power cut.
        sync_folder(workdir)
        if not is_replacing:
            run.upload()
        yield
