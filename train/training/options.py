"""Options of the loss, and of how a training goes on, is watched and saved."""

from __future__ import annotations

import dataclasses

from tfrecord_io import flags
from tfrecord_io.flags import flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossOptions:
    """What a step minimizes."""

    label_smoothing: float = flag(
        0.1,
        "share of each label that is spread evenly over all classes, in training",
        least=0,
        below=1,
    )
    class_weights: str = flag(
        "balanced",
        "weight of a class in the loss; none: equal, balanced: inverse to frequency",
        choices=("none", "balanced"),
    )
    class_weight_power: float = flag(
        0.5,
        "exponent of the balanced class weights; 1: unchanged, 0.5: their square roots",
        least=0,
    )

    __post_init__ = flags.check


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Which epoch is kept, when the state is saved, and what is watched."""

    best_by: str = flag(
        "last",
        "the epoch whose weights are kept: the last, or the best on the validation split. With few "
        "validation images, the best of many epochs is best by chance; with a cosine schedule the "
        "last epoch is usually as good",
        choices=("last", "val_loss", "val_accuracy"),
    )
    steps_per_execution: int = flag(
        1, "steps that the graph runs per call from Python", least=1, is_operational=True
    )
    checkpoint_seconds: float = flag(
        120.0, "seconds between checkpoints within an epoch", least=0, is_operational=True
    )
    step_timeout: float = flag(
        0.0,
        "seconds without a finished step after which the stacks are written to a file; 0: never",
        least=0,
        is_operational=True,
    )
    profile: str | None = flag(
        None,
        "first and last step to trace, such as 10,20; the trace is written to RUN/profile",
        metavar="FIRST,LAST",
        is_operational=True,
    )
    on_retrace: str = flag(
        "warn",
        "what to do if a graph is traced again after the first epoch",
        choices=("warn", "fail"),
        is_operational=True,
    )

    def __post_init__(self) -> None:
        flags.check(self)
        _ = self.profile_steps

    @property
    def profile_steps(self) -> tuple[int, int] | None:
        """First and last step to trace, counted from 1."""
        if self.profile is None:
            return None
        first, _, last = self.profile.partition(",")
        if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
            raise ValueError(
                "--profile must be the first and the last step, such as 10,20; received "
                f"{self.profile!r}"
            )
        return int(first), int(last)
