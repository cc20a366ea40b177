"""All that a training is about, in one object that is made once and passed whole."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path

import tfrecord_io
from tfrecord_io.reading.cache import DatasetCache
from tfrecord_io.reading.opening import load_manifest, open_split
from tfrecord_io.stores.folder import is_remote
from tfrecord_io.trunk import FILE_NAME, Trunk
from train.config import TrainConfig
from train.data.dataset import Dataset, open_dataset
from train.data.parts import Parts, choose_parts
from train.data.seen import Exposure, Seen, look_at, read_trunk_seen
from train.devices import Devices, configure_devices
from train.errors import ConfigError
from train.kinds.registry import task_of
from train.kinds.task import Task
from train.networks.options import TRUNK_WEIGHTS, NetworkOptions


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """All that a training is about; what follows from the data is read when it is asked for.

    Attributes:
        given: the configuration, with open decisions; adapted to the trunk, if there is one.
        folder: of its files.
        data: the dataset.
        devices: that train.
    """

    given: TrainConfig
    folder: Path
    data: Dataset
    devices: Devices

    @property
    def is_cross_validation(self) -> bool:
        """Whether this is many runs, one for each fold and seed, in folders below its own."""
        return self.given.folds.is_cross_validation

    @property
    def parts(self) -> Parts:
        """What the run trains on, validates on and tests on; raises `ConfigError`."""
        return self._view[0]

    @property
    def seen(self) -> Seen:
        """The images that the run sees."""
        return self._view[1]

    @property
    def exposure(self) -> Exposure | None:
        """How much it sees of the part that it evaluates; None if there is none."""
        return self._view[2]

    @functools.cached_property
    def _view(self) -> tuple[Parts, Seen, Exposure | None]:
        data, folds, weights = self.data, self.given.folds, self.given.network.initial_weights
        # What the weights have seen with which the training starts.
        below = Seen()
        if data.trunk is not None:
            below = read_trunk_seen(Path(data.path) / FILE_NAME, data.trunk)
        elif weights not in ("imagenet", "none"):
            below = Seen(unknown=f"its first weights are from elsewhere ({Path(weights).name})")
        is_fold = folds.fold is not None
        return look_at(data, choose_parts(data, folds), below, is_fold=is_fold)

    @functools.cached_property
    def task(self) -> Task:
        """What the run learns; raises `ConfigError`."""
        return task_of(self.data.manifest.label_kind).fitted(self.data, self.parts.train)

    @functools.cached_property
    def config(self) -> TrainConfig:
        """The configuration with every decision made; that of a cross-validation as given.

        Raises:
            ConfigError: if the configuration does not suit the data or the devices.
        """
        if self.is_cross_validation:
            return self.given
        # Labels from which nothing can be learnt are refused here, before a folder is made.
        quantity = self.task.quantity
        if self.given.loop.best_by == "val_accuracy" and quantity != "accuracy":
            raise ConfigError("--best_by val_accuracy needs classes or labels; use val_loss")
        return self.given.resolve(self.parts.train.num_examples, self.devices)

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


def make_run(config: TrainConfig, folder: Path) -> Run:
    """Sets up the devices and opens the dataset; nothing is written to the folder yet.

    Raises:
        ConfigError: if the configuration does not suit the devices or the kind of dataset.
        tfrecord_io.ManifestError: if the dataset cannot be used.
    """
    devices = configure_devices(config.devices)
    if is_remote(config.input.data):
        options = config.input
        manifest, _, versions = open_split(options.data, "train")
        cache = DatasetCache(manifest, versions, options.cache_dir, options.cache_gb)
        devices.say(cache.describe())
    else:
        manifest = load_manifest(config.input.data)
    views = task_of(manifest.label_kind).views(manifest.label_names)
    # They are used at the end of the run; a wrong one is told now.
    config.measures.prevalences([view.name for view in views])
    data = open_dataset(config.input.data_path, manifest, config.measures.columns)
    if (trunk := data.trunk) is not None:
        config = _adapt(config, trunk)
        devices.say(
            f"features of {trunk.model} up to {trunk.layer}: the layers above are trained; "
            "augmentation and the mirror image need images and are off"
        )
    return Run(given=config, folder=folder, data=data, devices=devices)


def _adapt(config: TrainConfig, trunk: Trunk) -> TrainConfig:
    """Returns a configuration with the trunk's network, and without what needs images."""
    # A run on the same features has the trunk's.
    decided = {
        "model": (NetworkOptions.model, trunk.model),
        "weights": (None, TRUNK_WEIGHTS),
        "normalize": (None,),
    }
    wrong = [name for name in decided if getattr(config.network, name) not in decided[name]]
    if wrong:
        raise ConfigError(
            f"{config.input.data} holds features of {trunk.model} up to {trunk.layer}, which "
            f"decide the network and its weights; remove {', '.join(f'--{name}' for name in wrong)}"
        )
    layers = config.network.trainable_layers
    return config.replace(
        model=trunk.model,
        weights=TRUNK_WEIGHTS,
        trainable_layers=trunk.rest_layers if layers is None else min(layers, trunk.rest_layers),
        augment=False,
        test_time_flip=False,
    )
