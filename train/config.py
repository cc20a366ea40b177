"""The configuration of a training run: one frozen dataclass, its flags, and its file.

argv → `parse_arguments` → `TrainConfig`, which validates itself → `resolve` fills in what
depends on the dataset and the devices → RUN/config.json, from which the run can be repeated.
Facts about the data (image size, classes, counts) come from the dataset's manifest, never from
here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train.applications import APPLICATIONS

FILE_NAME = "config.json"

#: Networks built here; they start from random weights.
OWN_MODELS = ("small_resnet", "convnet")
MODELS = (*OWN_MODELS, *sorted(APPLICATIONS))
STRATEGIES = ("auto", "single", "mirrored", "multi_worker")
PRECISIONS = ("auto", "float32", "bfloat16", "float16")


class ConfigError(ValueError):
    """A wrong use of the trainer: the message says what was expected and what to do."""


def _flag(default: Any, text: str, choices: Sequence[str] | None = None, **kwargs: Any) -> Any:
    metadata = {"help": text, "choices": choices, **kwargs}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides a run. Each field is a flag of the same name.

    A value of None means "decide from the data and the devices"; `resolve` replaces it, and the
    decision is written to RUN/config.json.

    Raises:
        ConfigError: if a value is out of range or two of them contradict each other.
    """

    data: str = _flag("", "folder of a finished dataset (it has a manifest.json)")
    model: str = _flag(
        "small_resnet",
        "network to train: small_resnet, convnet (the 2018 tutorial's), or any of "
        f"keras.applications: {', '.join(sorted(APPLICATIONS))}",
        MODELS,
    )
    weights: str | None = _flag(
        None,
        "starting weights: imagenet, none, or a weights file [imagenet for the networks of "
        "keras.applications, else none]",
    )
    trainable_layers: int | None = _flag(
        None,
        "layers at the end of a pretrained network that are trained after the head; the others "
        "stay frozen [4; all when the weights are none]",
    )
    normalize: str | None = _flag(
        None,
        "scaling of the pixels before small_resnet or convnet. data: by mean and standard "
        "deviation of the training split; image: by those of each image; unit: to 0..1 "
        "[small_resnet data, convnet unit]",
        ("data", "image", "unit"),
    )
    head_units: int | None = _flag(
        None, "width of a dense layer before the classes; 0: none [convnet and vgg16 64, else 0]"
    )
    dropout: float | None = _flag(
        None,
        "share of the features before the classes dropped in training [convnet and vgg16 0, "
        "else 0.3]",
    )
    test_time_flip: bool = _flag(
        True, "predict by the mean over an image and its mirror image, also in the export"
    )

    epochs: int | None = _flag(
        None,
        "passes over the training split, those of the head included [as many as show about "
        "3,400 x the square root of its size; a quarter of that with pretrained weights]",
    )
    head_epochs: int | None = _flag(
        None,
        "of these, epochs that train the new head alone before layers below are unfrozen "
        "[1 with pretrained weights, else 0]",
    )
    seed: int = _flag(0, "of weights, order and augmentation")
    replica_batch_size: int | None = _flag(
        None,
        "images a step and replica; global = this x replicas [32; 64 from 10,000 training "
        "images; less for fewer images than that]",
    )
    global_batch_size: int | None = _flag(
        None, "images a step over all replicas; overrides --replica_batch_size"
    )

    augment: bool = _flag(
        True, "mirror, move, light, erase and blur training images at random, on the device"
    )
    augment_strength: float = _flag(
        1.0, "factor of all ranges of the augmentation; 0 leaves only the mirroring"
    )
    mixup: float = _flag(
        0.3, "train on mixtures of two images, with shares from Beta(this, this); 0: never"
    )
    label_smoothing: float = _flag(
        0.1, "share of each label that is spread evenly over all classes, in training"
    )
    class_weights: str = _flag(
        "balanced", "weight of a class in the loss: the same, or inverse to its frequency",
        ("none", "balanced"),
    )  # fmt: skip
    class_weight_power: float = _flag(
        0.5, "exponent of the balanced class weights: 1 in full, 0.5 their square roots"
    )

    optimizer: str = _flag("adamw", "update rule", ("adamw", "adam", "sgd"))
    learning_rate: float = _flag(2e-3, "peak learning rate of the head (and of networks from none)")
    fine_tune_learning_rate: float = _flag(1e-4, "peak learning rate once pretrained layers train")
    weight_decay: float | None = _flag(
        None, "share of each kernel taken off a step, times the learning rate [adamw 0.05, else 0]"
    )
    ema_decay: float | None = _flag(
        None,
        "evaluate and export a moving average of the weights with this decay a step; 0: the "
        "weights themselves [an average over about 4 % of the steps]",
    )
    schedule: str = _flag("cosine", "learning rate after the warm-up", ("constant", "cosine"))
    warmup_steps: int | None = _flag(
        None,
        "steps over which the learning rate rises linearly from zero [5 % of all; with "
        "--scale_learning_rate five epochs, at most half of all]",
    )
    scale_learning_rate: bool = _flag(
        False, "multiply the learning rates by the number of replicas (Goyal et al. 2017)"
    )
    best_by: str = _flag(
        "last",
        "which epoch is kept: the last, or the best in validation. The best of many epochs on a "
        "few validation images is chosen by chance, and a cosine ends at its best",
        ("last", "val_loss", "val_accuracy"),
    )

    folds: int | None = _flag(
        None, "cross-validate: cut the patients into this many folds and hold each out in turn"
    )
    seeds: int = _flag(1, "with --folds: repeat it with this many seeds, counted from --seed")
    fold_splits: str | None = _flag(
        None, "with --folds: the splits to cut, such as train,val,test [train,val]"
    )
    fold: int | None = _flag(
        None, "with --folds: hold out this fold alone, counted from 0, as one run of its own"
    )

    precision: str = _flag(
        "auto", "arithmetic of the layers in training; weights, evaluation and export are float32 "
        "[bfloat16 on a GPU or CPU that has it in hardware, else float32]", PRECISIONS,
    )  # fmt: skip
    jit_compile: bool | None = _flag(
        None, "compile the step with XLA [yes on one GPU, else no; JAX always does]"
    )
    steps_per_execution: int = _flag(
        1, "steps run in one go inside the graph, without return to Python"
    )
    deterministic: bool = _flag(
        False, "only operations that give the same bits every time; slower on a GPU"
    )

    strategy: str = _flag(
        "auto",
        "auto: mirrored where there is more than one device, multi_worker where TF_CONFIG is set",
        STRATEGIES,
    )
    gpus: int | None = _flag(None, "devices to train on [all that are visible]")
    visible_gpus: str | None = _flag(None, "indices of the GPUs to use, such as 0,2 [all]")
    gpu_memory: str = _flag(
        "growth", "growth: take memory as needed; all: take it at the start; a number: at most MB"
    )
    gpu_allocator: str = _flag("bfc", "TensorFlow's GPU allocator", ("bfc", "cuda_malloc_async"))
    cpu_devices: int | None = _flag(
        None, "split the CPU into this many devices, to try replicas without a GPU"
    )

    engine: str = _flag("auto", "how shards are read", ("auto", "mmap", "stream"))
    cache: str = _flag(
        "none", "device: keep the training images in each device's memory", ("none", "device")
    )

    checkpoint_seconds: float = _flag(120.0, "time between checkpoints within an epoch")
    step_timeout: float = _flag(
        0.0, "seconds without a finished step after which all stacks are written down; 0: never"
    )
    profile: str | None = _flag(
        None, "first and last step to trace, such as 10,20; see RUN/profile afterwards"
    )
    on_retrace: str = _flag(
        "warn", "what to do if a graph is traced again after the first epoch", ("warn", "fail")
    )
    sensitivity: float = _flag(
        0.95, "sensitivity that the thresholds of metrics.json reach on the validation split"
    )
    bootstrap_samples: int = _flag(1000, "resamples behind each confidence interval")

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise ConfigError(
                    f"--{name} must be one of {', '.join(allowed)}; received {value!r}"
                )
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ConfigError(f"--{name} must be at least {least}; received {value}")
        for name in ("learning_rate", "fine_tune_learning_rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"--{name} must be above 0; received {getattr(self, name)}")
        for name in ("dropout", "label_smoothing", "ema_decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ConfigError(f"--{name} must be in 0..1, below 1; received {value}")
        if self.folds is None and (self.fold is not None or self.fold_splits or self.seeds > 1):
            raise ConfigError("--fold, --fold_splits and --seeds go with --folds; give that, too")
        if self.fold is not None and self.fold >= (self.folds or 0):
            raise ConfigError(f"--fold must be in 0..{(self.folds or 0) - 1}, received {self.fold}")
        if not 0 < self.sensitivity <= 1:
            raise ConfigError(
                f"--sensitivity must be above 0, at most 1; received {self.sensitivity}"
            )
        if None not in (self.head_epochs, self.epochs) and self.head_epochs > self.epochs:
            raise ConfigError(
                f"--head_epochs {self.head_epochs} is more than --epochs {self.epochs}: the "
                "epochs of the head are among the epochs"
            )
        if self.gpu_memory not in ("growth", "all") and not self.gpu_memory.isdigit():
            raise ConfigError(
                f"--gpu_memory must be growth, all or a number of MB; received {self.gpu_memory!r}"
            )
        if self.model in OWN_MODELS and self.weights == "imagenet":
            raise ConfigError(
                f"--model {self.model} has no ImageNet weights; use --weights none, a weights "
                "file, or another --model"
            )
        if self.normalize and self.model not in OWN_MODELS:
            raise ConfigError(
                f"--normalize is for {' and '.join(OWN_MODELS)}: {self.model} gets the input that "
                "its ImageNet weights expect; leave --normalize out"
            )
        _parse_range(self.profile)
        _parse_indices(self.visible_gpus)

    @property
    def pretrained(self) -> bool:
        """Whether the network starts from weights of another task (or of an earlier run)."""
        return (self.weights or _default_weights(self.model)) != "none"

    @property
    def profile_steps(self) -> tuple[int, int] | None:
        """First and last step to trace, counted from 1."""
        return _parse_range(self.profile)

    @property
    def visible_gpu_indices(self) -> tuple[int, ...] | None:
        return _parse_indices(self.visible_gpus)

    def resolve(
        self, *, num_examples: int, num_replicas: int, precision: str, jit_compile: bool
    ) -> TrainConfig:
        """Returns the configuration with every open decision made.

        The linear rule is applied here: the result has the scaled learning rates and no wish to
        scale, so that a run repeated from it is the same on any number of replicas.

        Args:
            num_examples: in the training split.
            num_replicas: devices that train together.
            precision: arithmetic that suits the devices, taken where the field says auto.
            jit_compile: likewise, taken where the field is None.

        Raises:
            ConfigError: if the global batch size cannot be split evenly over the replicas, or is
                larger than the training split.
        """
        replica_batch_size = self.replica_batch_size or min(
            64 if num_examples >= 10_000 else 32, max(1, num_examples // num_replicas)
        )
        global_batch_size = self.global_batch_size or replica_batch_size * num_replicas
        if global_batch_size % num_replicas:
            raise ConfigError(
                f"--global_batch_size {global_batch_size} cannot be split evenly over "
                f"{num_replicas} replicas; choose a multiple of {num_replicas}"
            )
        if global_batch_size > num_examples:
            raise ConfigError(
                f"a step takes {global_batch_size} images, the training split has "
                f"{num_examples}; use a smaller --replica_batch_size, or fewer replicas"
            )
        is_tutorial = self.model in _TUTORIAL_MODELS
        # Only a pretrained network has a head that is newer than the rest.
        fine_tunes = self.pretrained and self.model not in OWN_MODELS
        epochs = self.epochs or _choose_epochs(num_examples, fine_tunes)
        num_steps = math.ceil(epochs * num_examples / global_batch_size)
        warmup_steps = math.ceil(num_steps / 20)
        if self.scale_learning_rate:
            five_epochs = math.ceil(5 * num_examples / global_batch_size)
            warmup_steps = min(five_epochs, num_steps // 2)
        chosen: dict[str, Any] = {
            "weights": self.weights or _default_weights(self.model),
            "global_batch_size": global_batch_size,
            "replica_batch_size": global_batch_size // num_replicas,
            "precision": precision if self.precision == "auto" else self.precision,
            "epochs": epochs,
        }
        decisions: dict[str, Any] = {
            "jit_compile": jit_compile,
            "head_units": 64 if is_tutorial else 0,
            "dropout": 0.0 if is_tutorial else 0.3,
            "weight_decay": 0.05 if self.optimizer == "adamw" else 0.0,
            "warmup_steps": warmup_steps,
            # The mean age of what an average holds is 1 / (1 - decay) steps.
            "ema_decay": max(0.0, round(1 - 25 / num_steps, 6)),
            "head_epochs": min(1, epochs) if fine_tunes else 0,
        }
        if self.model in OWN_MODELS:
            decisions["normalize"] = "unit" if is_tutorial else "data"
        if fine_tunes:
            decisions["trainable_layers"] = 4
        chosen |= {name: value for name, value in decisions.items() if getattr(self, name) is None}
        if self.scale_learning_rate:
            chosen["scale_learning_rate"] = False
            chosen["learning_rate"] = self.learning_rate * num_replicas
            chosen["fine_tune_learning_rate"] = self.fine_tune_learning_rate * num_replicas
        return dataclasses.replace(self, **chosen)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


_AT_LEAST: Mapping[str, float] = {
    "trainable_layers": 0,
    "head_units": 0,
    "epochs": 1,
    "head_epochs": 0,
    "seed": 0,
    "replica_batch_size": 1,
    "global_batch_size": 1,
    "warmup_steps": 0,
    "steps_per_execution": 1,
    "gpus": 1,
    "cpu_devices": 1,
    "augment_strength": 0,
    "mixup": 0,
    "folds": 2,
    "seeds": 1,
    "fold": 0,
    "class_weight_power": 0,
    "weight_decay": 0,
    "checkpoint_seconds": 0,
    "step_timeout": 0,
    "bootstrap_samples": 0,
}
_CHOICES: Mapping[str, Sequence[str]] = {
    field.name: field.metadata["choices"]
    for field in dataclasses.fields(TrainConfig)
    if field.metadata["choices"]
}

#: Fields that do not change what is learnt: a run may go on with others. `replica_batch_size`
#: is here because the global batch size is what counts: a run may go on with more replicas.
OPERATIONAL_FIELDS = frozenset(
    {
        "data",
        "replica_batch_size",
        "steps_per_execution",
        "strategy",
        "gpus",
        "visible_gpus",
        "gpu_memory",
        "gpu_allocator",
        "cpu_devices",
        "engine",
        "cache",
        "checkpoint_seconds",
        "step_timeout",
        "profile",
        "on_retrace",
        "sensitivity",
        "bootstrap_samples",
    }
)


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Returns a line for each setting that would change what is learnt.

    Args:
        ours: fields of the configuration asked for, resolved.
        theirs: those a folder was made with.
    """
    return [
        f"{name}: {theirs.get(name)!r} there, {ours.get(name)!r} asked for"
        for name in sorted(ours.keys() | theirs.keys())
        if name not in OPERATIONAL_FIELDS and ours.get(name) != theirs.get(name)
    ]


def load_fields(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the fields of a configuration from a RUN/config.json.

    Raises:
        ConfigError: if there is no such file or it is not a configuration.
    """
    path = Path(path)
    if path.is_dir():
        path = path / FILE_NAME
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))["config"]
        unknown = set(fields) - {field.name for field in dataclasses.fields(TrainConfig)}
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}; name the config.json of a run") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not the configuration of a run: {error!r}") from error
    if unknown:
        raise ConfigError(f"{path} has settings this program does not know: {sorted(unknown)}")
    return fields


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each field; a flag that is not given leaves no trace in the namespace."""
    hints = typing.get_type_hints(TrainConfig)
    for field in dataclasses.fields(TrainConfig):
        kind = _value_type(hints[field.name])
        text = field.metadata["help"]
        if field.default not in (None, "", False):
            text += f" [{field.default}]"
        # argparse takes a single % for a placeholder.
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["type"] = kind
            if field.metadata["choices"]:
                options["choices"] = field.metadata["choices"]
                # Dozens of names are in the text, and would hide the other flags in the usage.
                if len(options["choices"]) > 8:
                    options["metavar"] = "NAME"
            else:
                options["metavar"] = {int: "N", float: "X", str: "VALUE"}[kind]
        parser.add_argument(f"--{field.name}", **options)


def from_arguments(given: Mapping[str, Any], file: str | None) -> TrainConfig:
    """Returns the configuration of a file with the given flags laid over it.

    Raises:
        ConfigError: if the file cannot be used or a value is out of range.
    """
    fields = load_fields(file) if file else {}
    config = TrainConfig(**{**fields, **given})
    if not config.data:
        raise ConfigError(
            "--data is missing: name the folder of a finished dataset, such as the --output of "
            "python pipelines/build_tfrecords.py"
        )
    return config


def _value_type(hint: Any) -> type:
    """The one type besides None in an annotation such as `int | None`."""
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
    return hint


def _default_weights(model: str) -> str:
    return "none" if model in OWN_MODELS else "imagenet"


def _choose_epochs(num_examples: int, fine_tunes: bool) -> int:
    """Returns how many epochs suit a training split.

    The images shown grow with the square root of the data: 147 epochs of 537 images, 76 of 2,000,
    12 of 84,000. At the small end that is what was tried on real scans (benchmarks/README.md); no
    other length was compared with it.
    """
    num_shown = 3400 * math.sqrt(num_examples)
    if fine_tunes:
        num_shown /= 4
    return min(max(round(num_shown / num_examples), _FEWEST_EPOCHS), _MOST_EPOCHS)


# Of an automatic length.
_FEWEST_EPOCHS = 3
_MOST_EPOCHS = 300

#: The two of the 2018 tutorial, with its head.
_TUTORIAL_MODELS = ("convnet", "vgg16")


def _parse_range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, last = text.partition(",")
    if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise ConfigError(
            f"--profile must be the first and the last step, such as 10,20; received {text!r}"
        )
    return int(first), int(last)


def _parse_indices(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    if not all(part.isdigit() for part in text.split(",")):
        raise ConfigError(f"--visible_gpus must be indices such as 0 or 0,2; received {text!r}")
    return tuple(int(part) for part in text.split(","))
