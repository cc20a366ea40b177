"""All that a training is about, in one object that is made once and passed whole; its folder.

A checkpoint has all variables and the position of the run, in one file that is written atomically:
a plain .npz of arrays, in the order in which Keras lists its variables, and a JSON text. Keras' own
`.weights.h5` does not store the position in the data or the states of random generators, and a kill
while it is written leaves half a file.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import fcntl
import functools
import importlib.metadata
import json
import math
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tfrecord_io
from tfrecord_io.files import atomic_write, sync_folder, write_json
from tfrecord_io.stores.folder import is_remote
from tfrecord_io.trunk import FILE_NAME, Trunk
from train import config as train_config
from train.config import TrainConfig
from train.data.dataset import Dataset, Parts, choose_parts, open_dataset
from train.data.seen import Exposure, Seen, look_at, read_trunk_seen
from train.devices import Devices, configure_devices
from train.errors import ConfigError, TrainingError
from train.kinds.registry import task_of
from train.kinds.task import Task
from train.networks.options import TRUNK_WEIGHTS, NetworkOptions

CHECKPOINT_NAME = "checkpoint.npz"
BEST_NAME = "best.npz"
HISTORY_NAME = "history.json"
METRICS_NAME = "metrics.json"

_FACTS = "facts"


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
    data = open_dataset(config.input.data_path, config.measures.columns)
    if cache := is_remote(data.path) and data.stored("train").cache:
        devices.say(cache.describe())
    views = task_of(data.manifest.label_kind).views(data.manifest.label_names)
    # They are used at the end of the run; a wrong one is told now.
    config.measures.prevalences([view.name for view in views])
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


@contextlib.contextmanager
def claim(run: Run) -> Iterator[None]:
    """Locks the folder of a run, made if it is missing, and writes its config.json.

    Only the chief does so.

    Raises:
        ConfigError: if the folder cannot be written, belongs to a run of another configuration, is
            not a run folder, or another process trains in it.
    """
    workdir, manifest = run.folder, run.data.manifest
    if not run.devices.is_chief:
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
                f"another process trains in {workdir}; wait until it ends, or use another --workdir"
            ) from None
        # A killed process leaves temporary files; the lock ensures that no other process writes.
        for leftover in workdir.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        path = workdir / train_config.FILE_NAME
        content = {
            "config": run.config.to_dict(),
            "dataset": {"name": manifest.name, "fingerprint": manifest.fingerprint},
            "backend": keras.backend.backend(),
            "num_replicas": run.devices.num_replicas,
            "versions": versions(),
        }
        if path.exists():
            if changed := train_config.differences(content, train_config.load(path)):
                raise ConfigError(
                    f"{workdir} contains a run with another configuration:\n  "
                    + "\n  ".join(changed)
                    + "\nUse another --workdir, or remove that folder"
                )
        elif any(entry.name != ".lock" for entry in workdir.iterdir()):
            raise ConfigError(
                f"{workdir} is not empty and has no {train_config.FILE_NAME}: it is not a run "
                "folder. Use another --workdir"
            )
        write_json(path, content)
        # A folder with a checkpoint, but without this file, would be refused after a power cut.
        sync_folder(workdir)
        yield


def versions() -> dict[str, str]:
    """Returns the versions of Python, Keras, the backend and NumPy, by name."""
    backend = keras.backend.backend()
    return {
        "python": sys.version.split()[0],
        "keras": keras.__version__,
        backend: importlib.metadata.version(backend),
        "numpy": np.__version__,
    }


def write_metrics(workdir: Path, metrics: Any) -> None:
    """Writes metrics.json, whose presence means that a run is complete.

    All other files of the folder are on the disk before it, with their names: a power cut may leave
    an unfinished run, which can go on, but not a complete one without its export.
    """
    for path in (*workdir.rglob("*"), workdir):
        if path.is_dir():
            sync_folder(path)
        elif path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    write_json(workdir / METRICS_NAME, metrics)


def read_metrics(workdir: Path) -> dict[str, Any]:
    """Returns the content of a run's metrics.json; empty if the run is not complete.

    Raises:
        ConfigError: if it is damaged.
    """
    path = workdir / METRICS_NAME
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ConfigError(
            f"{path} is damaged ({error}); copy the run again, or remove the file, and the command "
            "that trained the run evaluates it again"
        ) from None


def save_checkpoint(
    path: Path,
    groups: Mapping[str, Sequence[keras.Variable | np.ndarray]],
    facts: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
) -> None:
    """Writes variables or arrays by group, such as `model`, and JSON values; replaces the file.

    The history of the epochs is written beside it.
    """
    write_json(path.parent / HISTORY_NAME, history)
    arrays = {
        f"{group}/{index:05d}": variable if isinstance(variable, np.ndarray) else variable.numpy()
        for group, variables in groups.items()
        for index, variable in enumerate(variables)
    }
    text = json.dumps(facts).encode("utf-8")
    with atomic_write(path) as file:
        np.savez(file, **{_FACTS: np.frombuffer(text, np.uint8)}, **arrays)


def load_checkpoint(path: Path) -> tuple[dict[str, Any], Mapping[str, Sequence[np.ndarray]]]:
    """Returns (facts, arrays by group as they were saved); both are empty if there is no file.

    Raises:
        TrainingError: if the file is damaged.
    """
    groups: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    if not path.exists():
        return {}, groups
    # The file is opened here because np.load does not close a damaged file.
    with path.open("rb") as file:
        try:
            arrays = np.load(file, allow_pickle=False)
            for name in sorted(set(arrays.files) - {_FACTS}):
                groups[name.partition("/")[0]].append(arrays[name])
            return json.loads(arrays[_FACTS].tobytes()), groups
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise TrainingError(
                f"{path} cannot be read ({error}); remove it to start this run again from the "
                "beginning"
            ) from error
