"""The configuration of a training run: its groups of options, their flags and their file.

What depends on the dataset and the devices is decided by `plan`. The result is written to
RUN/config.json, from which the run can be repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfrecord_io.format.manifest import Manifest
from tfrecord_io.terminal import flags, printing
from tfrecord_io.terminal.address import is_inside, is_remote, local_path
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.flags import flag
from train.data.options import AugmentOptions, FoldOptions, InputOptions
from train.machine.devices import DeviceOptions
from train.machine.places import open_local
from train.networks.options import NetworkOptions, OptimizerOptions
from train.results.options import MeasureOptions, ThresholdOptions

FILE_NAME = "config.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossOptions:
    """What a step minimizes."""

    label_smoothing: float = flag(
        0.1,
        "share of each label that is spread evenly over all classes, in training",
        least=0,
        below=1,
    )
    class_weight_power: float = flag(
        0.5,
        "weights of the classes in the loss: inverse to their frequency, to this power; 0: equal",
        least=0,
    )

    __post_init__ = flags.check


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All settings of a run: groups of options, whose fields are flags of the same name.

    None means "decide from the data and the devices": `plan` replaces it, and the decision is
    written to RUN/config.json.
    """

    input: InputOptions
    network: NetworkOptions
    augmentation: AugmentOptions
    loss: LossOptions
    optimizer: OptimizerOptions
    folds: FoldOptions
    devices: DeviceOptions
    thresholds: ThresholdOptions
    measures: MeasureOptions

    def __post_init__(self) -> None:
        head_epochs, epochs = self.network.head_epochs, self.input.epochs
        if head_epochs is not None and epochs is not None and head_epochs > epochs:
            raise UserError(
                f"--head_epochs {head_epochs} is more than --epochs {epochs}; --epochs includes "
                "the epochs of the head"
            )

    @classmethod
    def of(cls, **fields: Any) -> TrainConfig:
        """Returns the configuration with these fields of its groups, and defaults for the others.

        Raises:
            UserError: if a value is out of range or two values contradict each other.
        """
        groups = {}
        for name, group in _groups():
            own = [field.name for field in dataclasses.fields(group) if field.name in fields]
            try:
                groups[name] = group(**{field: fields.pop(field) for field in own})
            except ValueError as error:
                raise UserError(str(error)) from None
        return cls(**groups, **fields)

    def replace(self, **fields: Any) -> TrainConfig:
        """Returns a copy with other fields of the groups, see `of`."""
        return TrainConfig.of(**self.to_dict() | fields)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields of all groups as JSON values."""
        return {
            name: value
            for fields in dataclasses.asdict(self).values()
            for name, value in fields.items()
        }


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Returns a line for each fact of two contents of a config.json that changes what is learnt.

    `ours` is of the requested run, resolved, and `theirs` of the run in the folder. A run may
    continue with other values of the options that are declared `is_operational`.
    """
    fields = [field for _, group in _groups() for field in dataclasses.fields(group)]
    free = {field.name for field in fields if field.metadata.get("is_operational")}
    if ours["config"].get("epochs") != theirs["config"].get("epochs"):
        free |= {"ema_decay", "warmup_steps", "head_epochs"}  # they follow from the epochs
    facts = []
    for content in (theirs, ours):
        known = {name: value for name, value in content["config"].items() if name not in free}
        known["dataset"] = content.get("dataset", {}).get("fingerprint")
        facts.append(known | {"backend": content.get("backend")})
    return printing.differences(*facts, "in the folder", "requested")


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the content of a run's config.json; the path is that of the file or of its folder.

    `config` has the fields of `TrainConfig` as JSON values; `claim.claim` adds the others.

    Raises:
        UserError: if the file does not exist, or is not a configuration of this version.
    """
    path = local_path(path)
    path = path / FILE_NAME if path.is_dir() else path
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        TrainConfig.of(**content["config"])
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give a run, or its {FILE_NAME}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError) as error:
        raise UserError(
            f"{path} is not the configuration of a run of this version: {error!r}"
        ) from error
    return content


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each field, under a heading for each group."""
    for name, group in _groups():
        flags.add_flags(parser, name, group)


def from_arguments(
    arguments: argparse.Namespace, open_run: Callable[[str], Path] = open_local, **defaults: Any
) -> TrainConfig:
    """Returns the configuration of the flags, over that of the file that `--config` names.

    Refuses before the long imports what need not wait for them. A run that starts from another one
    has its network; `open_run` returns its folder. `defaults` are values of fields that nothing
    else gives.

    Raises:
        UserError: if the file cannot be used, a value is out of range, `data` is missing, or the
            backend cannot train here.
        tfrecord_io.ManifestError: if the dataset is local, and has no manifest that can be used.
    """
    given: dict[str, Any] = {}
    for _, group in _groups():
        given |= flags.given(group, arguments)
    if init := given.get("init"):
        if "weights" in given:
            raise UserError(f"--init {init} gives the first weights; leave out --weights")
        workdir = getattr(arguments, "workdir", None)
        if workdir and is_inside(init, workdir):
            raise UserError(
                f"--init {init} is in --workdir {workdir}, where this run would replace it; "
                "choose another --workdir"
            )
        of_init = load(open_run(init))["config"]
        names = {field.name for field in dataclasses.fields(NetworkOptions)} & of_init.keys()
        defaults |= {name: of_init[name] for name in names}
    file = getattr(arguments, "config", None)
    config = TrainConfig.of(**defaults | (load(file)["config"] if file else {}) | given)
    data = config.input.data
    if not data:
        raise UserError(
            "--data is missing; give the folder of a finished dataset, such as the --output of "
            f"{flags.command('build')}"
        )
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    if backend not in ("tensorflow", "jax") or importlib.util.find_spec(backend) is None:
        raise UserError(
            f"KERAS_BACKEND={backend} is not installed, or not supported; use tensorflow or jax, "
            "of pip install '.[train]' or '.[jax]' in the clone of this project. PyTorch reads the "
            "data with tfrecord_io.make_batches (docs/reader.md)"
        )
    if not is_remote(data):
        if cache := given.keys() & {"cache_dir", "cache_gb"}:
            raise UserError(
                f"--{min(cache)}: only what a URL gives is cached, and --data {data} is a local "
                "folder; leave it out"
            )
        Manifest.load(data)
    return config


def _groups() -> list[tuple[str, type]]:
    """Returns the name and the class of each group of options."""
    hints = typing.get_type_hints(TrainConfig)
    return [(field.name, hints[field.name]) for field in dataclasses.fields(TrainConfig)]
