"""The configuration of a training run: a frozen dataclass, its command-line flags and its file.

`add_arguments` declares the flags. `from_arguments` returns a `TrainConfig`, which validates
itself. `resolve` decides what depends on the dataset and the devices. The result is written to
RUN/config.json, from which the run can be repeated. Facts about the data (image size, classes,
counts) come only from the dataset's manifest.
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

#: Networks of this project; they start from random weights.
OWN_MODELS = ("small_resnet", "convnet")
MODELS = (*OWN_MODELS, *sorted(APPLICATIONS))
#: Value of `weights` for a network whose trunk made the features; nobody gives it as a flag.
TRUNK_WEIGHTS = "trunk"


class ConfigError(ValueError):
    """The trainer was used wrongly; the message says what was expected and what to do."""


def _flag(
    default: Any, text: str, choices: Sequence[str] | None = None, *, least: float | None = None
) -> Any:
    metadata = {"help": text, "choices": choices, "least": least}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All settings of a run. Each field is a flag of the same name.

    None means "decide from the data and the devices": `resolve` replaces it, and the decision is
    written to RUN/config.json.

    Raises:
        ConfigError: if a value is out of range or two values contradict each other.
    """

    data: str = _flag("", "folder of a finished dataset (it contains manifest.json)")
    model: str = _flag(
        "small_resnet",
        "network to train: small_resnet, convnet (the 2018 tutorial's), or any of "
        f"keras.applications: {', '.join(sorted(APPLICATIONS))}",
        MODELS,
    )
    weights: str | None = _flag(
        None,
        "initial weights: imagenet, none, or a weights file [imagenet for the networks of "
        "keras.applications, else none]",
    )
    trainable_layers: int | None = _flag(
        None,
        "number of layers at the end of a pretrained network that are trained after the head; the "
        "others stay frozen [4; all if the weights are none]",
        least=0,
    )
    normalize: str | None = _flag(
        None,
        "pixel scaling before small_resnet or convnet. data: by the mean and standard deviation of "
        "the training split; image: by those of each image; unit: to 0..1 [small_resnet: data, "
        "convnet: unit]",
        ("data", "image", "unit"),
    )
    head_units: int | None = _flag(
        None,
        "units of a dense layer before the output layer; 0: no such layer [convnet and vgg16: 64, "
        "else 0]",
        least=0,
    )
    dropout: float | None = _flag(
        None,
        "share of the features before the output layer that training drops [convnet and vgg16: 0, "
        "else 0.3]",
    )
    test_time_flip: bool = _flag(
        True, "average the predictions for an image and its mirror image, also in the export"
    )

    epochs: int | None = _flag(
        None,
        "passes over the training split, including those of the head [so many that the run shows "
        "about 3,400 x the square root of the number of images; a quarter of that with "
        "pretrained weights]",
        least=1,
    )
    head_epochs: int | None = _flag(
        None,
        "how many of the epochs train only the new head, before the layers below are unfrozen "
        "[1 with pretrained weights, else 0]",
        least=0,
    )
    seed: int = _flag(0, "seed of the weights, the order and the augmentation", least=0)
    replica_batch_size: int | None = _flag(
        None,
        "images per step and replica; the global batch size is this x replicas [64 for 10,000 or "
        "more training images, else 32; at most the training images per replica]",
        least=1,
    )
    global_batch_size: int | None = _flag(
        None, "images per step over all replicas; overrides --replica_batch_size", least=1
    )

    augment: bool = _flag(
        True,
        "mirror, warp, light and partly erase training images at random, and add noise, on the "
        "device",
    )
    augment_strength: float = _flag(
        1.0, "factor for the ranges of the augmentation; 0 leaves only the mirroring", least=0
    )
    mixup: float = _flag(
        0.3,
        "train on mixtures of two images, with shares drawn from Beta(X, X); 0: no mixtures",
        least=0,
    )
    label_smoothing: float = _flag(
        0.1, "share of each label that is spread evenly over all classes, in training"
    )
    class_weights: str = _flag(
        "balanced", "weight of a class in the loss; none: equal, balanced: inverse to frequency",
        ("none", "balanced"),
    )  # fmt: skip
    class_weight_power: float = _flag(
        0.5,
        "exponent of the balanced class weights; 1: unchanged, 0.5: their square roots",
        least=0,
    )

    optimizer: str = _flag("adamw", "update rule", ("adamw", "adam", "sgd"))
    learning_rate: float = _flag(
        2e-3, "peak learning rate of the head, and of all layers without pretrained weights"
    )
    fine_tune_learning_rate: float = _flag(1e-4, "peak learning rate while pretrained layers train")
    weight_decay: float | None = _flag(
        None,
        "weight decay: a step shrinks each kernel by this x learning rate [adamw: 0.05, else 0]",
        least=0,
    )
    ema_decay: float | None = _flag(
        None,
        "evaluate and export a moving average of the weights with this decay per step; 0: the "
        "weights themselves [an average over about 4 % of the steps]",
    )
    schedule: str = _flag("cosine", "learning rate after the warm-up", ("constant", "cosine"))
    warmup_steps: int | None = _flag(
        None,
        "steps over which the learning rate rises linearly from zero [5 % of all steps; with "
        "--scale_learning_rate five epochs, but at most half of all steps]",
        least=0,
    )
    scale_learning_rate: bool = _flag(
        False, "multiply the learning rates by the number of replicas (Goyal et al. 2017)"
    )
    best_by: str = _flag(
        "last",
        "the epoch whose weights are kept: the last, or the best on the validation split. With few "
        "validation images, the best of many epochs is best by chance; with a cosine schedule the "
        "last epoch is usually as good",
        ("last", "val_loss", "val_accuracy"),
    )

    folds: int | None = _flag(
        None,
        "cross-validate: divide the patients into this many folds and hold out each in turn",
        least=2,
    )
    seeds: int = _flag(
        1,
        "with --folds: repeat the cross-validation with this many seeds, starting at --seed",
        least=1,
    )
    fold_splits: str | None = _flag(
        None, "with --folds: the splits to divide, such as train,val,test [train,val]"
    )
    fold: int | None = _flag(
        None, "with --folds: a single run that holds out this fold, counted from 0", least=0
    )

    precision: str = _flag(
        "auto",
        "arithmetic of the layers in training; weights, evaluation and export are float32; "
        "auto: bfloat16 on a GPU or CPU with hardware support, else float32",
        ("auto", "float32", "bfloat16", "float16"),
    )
    jit_compile: bool | None = _flag(
        None, "compile the step with XLA [yes on one GPU, else no; JAX always compiles]"
    )
    steps_per_execution: int = _flag(1, "steps that the graph runs per call from Python", least=1)
    deterministic: bool = _flag(
        False, "use only operations that give the same bits every time; slower on a GPU"
    )

    strategy: str = _flag(
        "auto",
        "auto: multi_worker if TF_CONFIG is set, mirrored with more than one device, else single",
        ("auto", "single", "mirrored", "multi_worker"),
    )
    gpus: int | None = _flag(None, "number of devices to train on [all visible ones]", least=1)
    visible_gpus: str | None = _flag(None, "indices of the GPUs to use, such as 0,2 [all]")
    gpu_memory: str = _flag(
        "growth",
        "growth: allocate as needed; all: allocate all at the start; a number: limit in MB",
    )
    gpu_allocator: str = _flag("bfc", "TensorFlow's GPU allocator", ("bfc", "cuda_malloc_async"))
    cpu_devices: int | None = _flag(
        None, "split the CPU into this many devices, to test replicas without a GPU", least=1
    )

    engine: str = _flag("auto", "how shards are read", ("auto", "mmap", "stream"))
    cache: str = _flag(
        "none", "device: keep the training images in each device's memory", ("none", "device")
    )

    checkpoint_seconds: float = _flag(120.0, "seconds between checkpoints within an epoch", least=0)
    step_timeout: float = _flag(
        0.0,
        "seconds without a finished step after which the stacks are written to a file; 0: never",
        least=0,
    )
    profile: str | None = _flag(
        None, "first and last step to trace, such as 10,20; the trace is written to RUN/profile"
    )
    on_retrace: str = _flag(
        "warn", "what to do if a graph is traced again after the first epoch", ("warn", "fail")
    )
    sensitivity: float = _flag(
        0.95, "sensitivity that the thresholds of metrics.json reach on the validation split"
    )
    bootstrap_samples: int = _flag(
        1000, "bootstrap resamples for each confidence interval", least=0
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            allowed, least = field.metadata["choices"], field.metadata["least"]
            if value is not None and allowed and value not in allowed:
                raise ConfigError(
                    f"--{name} must be one of {', '.join(allowed)}; received {value!r}"
                )
            if value is not None and least is not None and not value >= least:
                raise ConfigError(f"--{name} must be at least {least}; received {value}")
        for name in ("learning_rate", "fine_tune_learning_rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"--{name} must be above 0; received {getattr(self, name)}")
        for name in ("dropout", "label_smoothing", "ema_decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ConfigError(f"--{name} must be at least 0 and below 1; received {value}")
        if self.folds is None and (self.fold is not None or self.fold_splits or self.seeds > 1):
            raise ConfigError("--fold, --fold_splits and --seeds need --folds; add --folds")
        if self.folds and self.engine == "stream":
            raise ConfigError(
                "--engine stream reads whole splits, but a fold is a choice of images; leave "
                "--engine out"
            )
        if self.fold is not None and self.fold >= (self.folds or 0):
            raise ConfigError(f"--fold must be in 0..{(self.folds or 0) - 1}, received {self.fold}")
        if not 0 < self.sensitivity <= 1:
            raise ConfigError(
                f"--sensitivity must be above 0 and at most 1; received {self.sensitivity}"
            )
        if None not in (self.head_epochs, self.epochs) and self.head_epochs > self.epochs:
            raise ConfigError(
                f"--head_epochs {self.head_epochs} is more than --epochs {self.epochs}; "
                "--epochs includes the epochs of the head"
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
                f"--normalize is only for {' and '.join(OWN_MODELS)}: {self.model} always gets the "
                "input that its ImageNet weights expect; remove --normalize"
            )
        _parse_range(self.profile)
        _parse_indices(self.visible_gpus)

    @property
    def pretrained(self) -> bool:
        """Whether the network starts from weights of another task or of an earlier run."""
        return (self.weights or _default_weights(self.model)) != "none"

    @property
    def profile_steps(self) -> tuple[int, int] | None:
        """First and last step to trace, counted from 1."""
        return _parse_range(self.profile)

    @property
    def visible_gpu_indices(self) -> tuple[int, ...] | None:
        """Indices of the GPUs to use; None for all."""
        return _parse_indices(self.visible_gpus)

    def resolve(
        self, *, num_examples: int, num_replicas: int, precision: str, jit_compile: bool
    ) -> TrainConfig:
        """Returns the configuration with every open decision made.

        The learning rates of the result are already scaled by the number of replicas, and
        `scale_learning_rate` is False, so that a repeated run is the same on any number of
        replicas. Source of the scaling: Goyal et al. 2017, "Accurate, large minibatch SGD".

        Args:
            num_examples: examples of the training split.
            num_replicas: devices that train together.
            precision: arithmetic that suits the devices; used if the field is `auto`.
            jit_compile: whether XLA suits the devices; used if the field is None.

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
                f"a step takes {global_batch_size} images, but the training split has only "
                f"{num_examples}; use a smaller --replica_batch_size or fewer replicas"
            )
        is_tutorial = self.model in _TUTORIAL_MODELS
        # Only networks of keras.applications, and those above a trunk, keep pretrained layers below
        # a new head.
        has_trunk = self.weights == TRUNK_WEIGHTS
        fine_tunes = self.pretrained and (has_trunk or self.model not in OWN_MODELS)
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
            # An average with this decay covers about 1 / (1 - decay) steps.
            "ema_decay": max(0.0, round(1 - 25 / num_steps, 6)),
            "head_epochs": min(1, epochs) if fine_tunes else 0,
        }
        if self.model in OWN_MODELS and not has_trunk:
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
        """Returns the fields as JSON values."""
        return dataclasses.asdict(self)


#: Fields that do not change what is learnt, so a run may continue with other values.
#: `replica_batch_size` is one of them because only the global batch size matters: a run may
#: continue on another number of replicas.
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
    """Returns a line for each differing setting that changes what is learnt.

    Args:
        ours: fields of the requested configuration, resolved.
        theirs: fields of the configuration in the run folder.
    """
    return [
        f"{name}: {theirs.get(name)!r} in the folder, {ours.get(name)!r} requested"
        for name in sorted(ours.keys() | theirs.keys())
        if name not in OPERATIONAL_FIELDS and ours.get(name) != theirs.get(name)
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
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        unknown = set(content["config"]) - {field.name for field in dataclasses.fields(TrainConfig)}
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; give the config.json of a run") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not the configuration of a run: {error!r}") from error
    if unknown:
        raise ConfigError(f"{path} has settings that this version does not know: {sorted(unknown)}")
    hints = typing.get_type_hints(TrainConfig)
    for name, value in content["config"].items():
        kind = _value_type(hints[name])
        if value is not None and not isinstance(value, (int, float) if kind is float else kind):
            raise ConfigError(f"{path}: {name} must be of type {kind.__name__}; received {value!r}")
    return content


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each field.

    The namespace contains only the flags that were given, so a file can supply the others.

    Args:
        parser: the parser of a command.
    """
    hints = typing.get_type_hints(TrainConfig)
    for field in dataclasses.fields(TrainConfig):
        kind = _value_type(hints[field.name])
        text = field.metadata["help"]
        if field.default not in (None, "", False):
            text += f" [{field.default}]"
        # argparse reads a single % as a placeholder.
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["type"] = kind
            if field.metadata["choices"]:
                options["choices"] = field.metadata["choices"]
                # The help text lists all names; in the usage they would hide other flags.
                if len(options["choices"]) > 8:
                    options["metavar"] = "NAME"
            else:
                options["metavar"] = {int: "N", float: "X", str: "VALUE"}[kind]
        parser.add_argument(f"--{field.name}", **options)


def from_arguments(given: Mapping[str, Any], file: str | None) -> TrainConfig:
    """Returns the configuration of a file, overridden by the given flags.

    Args:
        given: values by field.
        file: path of a config.json, or None for the defaults.

    Raises:
        ConfigError: if the file cannot be used, a value is out of range, or `data` is missing.
    """
    fields = load(file)["config"] if file else {}
    config = TrainConfig(**{**fields, **given})
    if not config.data:
        raise ConfigError(
            "--data is missing; give the folder of a finished dataset, such as the --output of "
            "python pipelines/build_tfrecords.py"
        )
    return config


def _value_type(hint: Any) -> type:
    """Returns the type besides None in an annotation such as `int | None`."""
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
    return hint


def _default_weights(model: str) -> str:
    return "none" if model in OWN_MODELS else "imagenet"


def _choose_epochs(num_examples: int, fine_tunes: bool) -> int:
    """Returns how many epochs suit a training split.

    The number of images shown grows with the square root of the split: 147 epochs of 537 images, 76
    of 2,000, 12 of 84,000. Only the length for the smallest split was tried on real scans
    (benchmarks/README.md); no other length was compared with it.
    """
    num_shown = 3400 * math.sqrt(num_examples)
    if fine_tunes:
        num_shown /= 4
    return min(max(round(num_shown / num_examples), _FEWEST_EPOCHS), _MOST_EPOCHS)


# Limits of `_choose_epochs`.
_FEWEST_EPOCHS = 3
_MOST_EPOCHS = 300

#: The two networks of the 2018 tutorial; their default head is the tutorial's.
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
