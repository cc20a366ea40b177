"""The configuration of a training run: the options of each room, their flags and their file.

`add_arguments` declares the flags, `from_arguments` returns a `TrainConfig`, and `resolve` decides
what depends on the dataset and the devices. The result is written to RUN/config.json, from which
the run can be repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tfrecord_io import flags
from tfrecord_io.manifest import Manifest
from train.data.options import AugmentOptions, FoldOptions, InputOptions
from train.devices import DeviceOptions, Devices
from train.errors import ConfigError
from train.networks.options import (
    OWN_MODELS,
    TRUNK_WEIGHTS,
    TUTORIAL_MODELS,
    NetworkOptions,
    OptimizerOptions,
)
from train.results.options import MeasureOptions, ThresholdOptions
from train.training.options import LoopOptions, LossOptions

FILE_NAME = "config.json"


class Phase(NamedTuple):
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All settings of a run: the options of each room, whose fields are flags of the same name.

    None means "decide from the data and the devices": `resolve` replaces it, and the decision is
    written to RUN/config.json.
    """

    input: InputOptions
    network: NetworkOptions
    augmentation: AugmentOptions
    loss: LossOptions
    optimizer: OptimizerOptions
    folds: FoldOptions
    devices: DeviceOptions
    loop: LoopOptions
    thresholds: ThresholdOptions
    measures: MeasureOptions

    def __post_init__(self) -> None:
        head_epochs, epochs = self.network.head_epochs, self.input.epochs
        if head_epochs is not None and epochs is not None and head_epochs > epochs:
            raise ConfigError(
                f"--head_epochs {head_epochs} is more than --epochs {epochs}; --epochs includes "
                "the epochs of the head"
            )

    @classmethod
    def of(cls, **fields: Any) -> TrainConfig:
        """Returns the configuration with these fields of its groups, and defaults for the others.

        Raises:
            ConfigError: if a value is out of range or two values contradict each other.
        """
        groups = {}
        try:
            for name, group in _groups():
                own = [field.name for field in dataclasses.fields(group) if field.name in fields]
                groups[name] = group(**{field: fields.pop(field) for field in own})
            return cls(**groups, **fields)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def replace(self, **fields: Any) -> TrainConfig:
        """Returns a copy with other fields of the groups, see `of`."""
        return TrainConfig.of(**self.to_dict() | fields)

    @property
    def phases(self) -> list[Phase]:
        """The phases of a resolved configuration, in order."""
        network, optimizer, epochs = self.network, self.optimizer, self.input.epochs or 0
        head_epochs = (network.head_epochs or 0) if network.has_backbone else 0
        if network.fine_tunes and network.trainable_layers == 0:
            head_epochs = epochs
        rate = optimizer.learning_rate
        rest_rate = optimizer.fine_tune_learning_rate if network.fine_tunes else rate
        phases = [
            Phase("head", 0, head_epochs - 1, rate),
            Phase("all", head_epochs, epochs - 1, rest_rate),
        ]
        return [phase for phase in phases if phase.first_epoch <= phase.last_epoch]

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields of all groups as JSON values."""
        return {
            name: value
            for fields in dataclasses.asdict(self).values()
            for name, value in fields.items()
        }

    def resolve(self, num_examples: int, devices: Devices) -> TrainConfig:
        """Returns the configuration with every open decision made, for a training split.

        The learning rates of the result are already scaled by the number of replicas, and
        `scale_learning_rate` is False, so that a repeated run is the same on any number of
        replicas. Source of the scaling: Goyal et al. 2017, "Accurate, large minibatch SGD".

        Raises:
            ConfigError: if the global batch size cannot be split evenly over the replicas, or is
                larger than the training split.
        """
        num_replicas = devices.num_replicas
        network, optimizer = self.network, self.optimizer
        replica_batch_size = self.input.replica_batch_size or min(
            64 if num_examples >= 10_000 else 32, max(1, num_examples // num_replicas)
        )
        global_batch_size = self.input.global_batch_size or replica_batch_size * num_replicas
        if global_batch_size % num_replicas:
            raise ConfigError(
                f"--global_batch_size {global_batch_size} cannot be split evenly over "
                f"{num_replicas} replicas; choose a multiple of {num_replicas}"
            )
        if global_batch_size > num_examples:
            raise ConfigError(
                f"a step takes {global_batch_size} images, but the training split has only "
                f"{num_examples}; use a smaller --replica_batch_size or fewer replicas"
            )
        epochs = self.input.epochs or _choose_epochs(num_examples, network.fine_tunes)
        num_steps = math.ceil(epochs * num_examples / global_batch_size)
        warmup_steps = math.ceil(num_steps / 20)
        if optimizer.scale_learning_rate:
            five_epochs = math.ceil(5 * num_examples / global_batch_size)
            warmup_steps = min(five_epochs, num_steps // 2)
        is_tutorial = network.model in TUTORIAL_MODELS
        decisions: dict[str, Any] = {
            "weights": network.initial_weights,
            "epochs": epochs,
            "jit_compile": devices.best_jit_compile,
            "head_units": 64 if is_tutorial else 0,
            "dropout": 0.0 if is_tutorial else 0.3,
            "weight_decay": 0.05 if optimizer.optimizer == "adamw" else 0.0,
            "warmup_steps": warmup_steps,
            # An average with this decay covers about 1 / (1 - decay) steps.
            "ema_decay": max(0.0, round(1 - 25 / num_steps, 6)),
            "head_epochs": min(1, epochs) if network.fine_tunes else 0,
        }
        if network.model in OWN_MODELS and network.weights != TRUNK_WEIGHTS:
            decisions["normalize"] = "unit" if is_tutorial else "data"
        if network.fine_tunes:
            decisions["trainable_layers"] = 4
        given = self.to_dict()
        chosen = {name: value for name, value in decisions.items() if given[name] is None}
        chosen["global_batch_size"] = global_batch_size
        chosen["replica_batch_size"] = global_batch_size // num_replicas
        if self.devices.precision == "auto":
            chosen["precision"] = devices.best_precision
        if optimizer.scale_learning_rate:
            chosen["scale_learning_rate"] = False
            for name in ("learning_rate", "fine_tune_learning_rate"):
                chosen[name] = given[name] * num_replicas
        return self.replace(**chosen)


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Returns a line for each setting that changes what is learnt and differs.

    A run may continue with other values of the options that are declared `is_operational`.

    Args:
        ours: fields of the requested configuration, resolved.
        theirs: fields of the configuration in the run folder.
    """
    operational = {field.name for field, _ in _fields() if field.metadata.get("is_operational")}
    return [
        f"{name}: {theirs.get(name)!r} in the folder, {ours.get(name)!r} requested"
        for name in sorted((ours.keys() | theirs.keys()) - operational)
        if ours.get(name) != theirs.get(name)
    ]


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the content of a run's config.json.

    Args:
        path: the file, or the folder that contains it.

    Returns:
        JSON values: `config` has the fields of `TrainConfig`; `run_folder.claim` adds the others.

    Raises:
        ConfigError: if the file does not exist, is not a configuration, or has unknown settings or
            a value of the wrong type.
    """
    path = Path(path)
    if path.is_dir():
        path = path / FILE_NAME
    types_of = {field.name: kind for field, kind in _fields()}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        unknown = set(content["config"]) - types_of.keys()
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; give the config.json of a run") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not the configuration of a run: {error!r}") from error
    if unknown:
        raise ConfigError(f"{path} has settings that this version does not know: {sorted(unknown)}")
    for name, value in content["config"].items():
        kind = types_of[name]
        if value is not None and not isinstance(value, (int, float) if kind is float else kind):
            raise ConfigError(f"{path}: {name} must be of type {kind.__name__}; received {value!r}")
    return content


def add_arguments(parser: argparse.ArgumentParser, *, is_hidden: bool = False) -> Any:
    """Adds a flag for each field, under a heading for each group; returns the first heading.

    Args:
        parser: of the command.
        is_hidden: whether --help leaves out all but the first.
    """
    matter = ("data", "model", "weights", "epochs")
    heading = "the flags that matter first"
    first = flags.add_flags(parser, heading, *(group for _, group in _groups()), only=matter)
    for name, group in _groups():
        flags.add_flags(parser, name, group, without=matter, is_hidden=is_hidden)
    return first


def given_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the values of the flags that were given, by field, so a file can supply the others.

    Raises:
        ConfigError: if a text is not a valid value of its flag.
    """
    fields: dict[str, Any] = {}
    try:
        for _, group in _groups():
            fields |= flags.given(group, arguments)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return fields


def from_arguments(given: Mapping[str, Any], file: str | None) -> TrainConfig:
    """Returns the configuration of a file, overridden by the given flags.

    Args:
        given: values by field.
        file: path of a config.json, or None for the defaults.

    Raises:
        ConfigError: if the file cannot be used, a value is out of range, or `data` is missing.
    """
    fields = load(file)["config"] if file else {}
    config = TrainConfig.of(**{**fields, **given})
    if not config.input.data:
        raise ConfigError(
            "--data is missing; give the folder of a finished dataset, such as the --output of "
            f"{flags.command('build')}"
        )
    return config


def check_data(data: str) -> None:
    """Reads the manifest of a local dataset, so that a wrong path is told before long imports.

    Raises:
        tfrecord_io.ManifestError: if there is none, or it cannot be used.
    """
    if "://" not in data:
        Manifest.load(data)


def _groups() -> list[tuple[str, type]]:
    """Returns the name and the class of each group of options."""
    hints = typing.get_type_hints(TrainConfig)
    return [(field.name, hints[field.name]) for field in dataclasses.fields(TrainConfig)]


def _fields() -> list[tuple[dataclasses.Field[Any], Any]]:
    """Returns the fields of all groups, each with the type of its values besides None."""
    return [field for _, group in _groups() for field in flags.fields_of(group)]


def _choose_epochs(num_examples: int, fine_tunes: bool) -> int:
    """Returns how many epochs suit a training split, 3 to 300.

    The number of images shown grows with the square root of the split: 147 epochs of 537 images, 76
    of 2,000, 12 of 84,000. Only the length for the smallest split was tried on real scans
    (benchmarks/README.md); no other length was compared with it.
    """
    num_shown = 3400 * math.sqrt(num_examples) / (4 if fine_tunes else 1)
    return min(max(round(num_shown / num_examples), 3), 300)
