"""The options of the plan: the splits, and how they are shuffled and cut into shards."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, Literal

from tfrecord_io import augment
from tfrecord_io.flags import check, flag

#: Fractions of `--splits patient` unless the user gives others.
DEFAULT_FRACTIONS = (("train", 0.8), ("val", 0.1), ("test", 0.1))

#: Default size of a shard in megabytes: large enough that a network store streams it at full speed
#: (tens of megabytes), small enough that the Kermany data gives about 70 tasks to share.
DEFAULT_SHARD_SIZE_MB = 64

#: For more augmented copies than this, augment in the trainer, which makes new ones in each epoch.
MAX_VARIANTS = 100

_POLICIES = ("keep", "drop", "fail")
_LARGEST_SEED = 2**63 - 1


def _fractions(text: str) -> tuple[tuple[str, float], ...]:
    pairs = (part.partition("=") for part in text.split(","))
    return tuple((name.strip(), float(share)) for name, _, share in pairs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """How the splits are made, and what happens to patients and pictures that are in several.

    Raises:
        ValueError: if a value is wrong, or two options contradict each other.
    """

    splits: Literal["source", "patient"] = flag(
        "source",
        "source: keep the splits of the source's folders; patient: make new splits, with each "
        "patient in one split",
        choices=("source", "patient"),
    )
    split_fractions: tuple[tuple[str, float], ...] | None = flag(
        None,
        "share of each split, for --splits patient (default: "
        + ",".join(f"{name}={share:g}" for name, share in DEFAULT_FRACTIONS)
        + ")",
        parse=_fractions,
        expected="shares like train=0.8,val=0.1,test=0.1",
        metavar="A=X,B=Y,...",
    )
    split_seed: int | None = flag(
        0,
        "decides, with the patient's name, which split a patient is in; auto searches for a seed "
        "that gives every class its share",
        parse=lambda text: None if text == "auto" else int(text),
        expected="a number or auto",
        least=0,
        most=_LARGEST_SEED,
        metavar="N|auto",
    )
    keep_split: str | None = flag(
        None,
        "keep this split of the source as it is, and leave its patients out of the other splits",
        metavar="SPLIT",
    )
    leaks: Literal["keep", "drop", "fail"] = flag(
        "keep",
        "what to do with patients and pictures that are in several splits: keep and report "
        "them, drop them from the less protected split (test is protected most, then val), or "
        "fail",
        choices=_POLICIES,
    )
    duplicates: Literal["keep", "drop", "fail"] = flag(
        "keep",
        "what to do with images of exactly the same stored pixels: keep and report them, "
        "drop all but one (all, if their labels differ), or fail",
        choices=_POLICIES,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.split_fractions is None:
            return
        if self.splits == "source":
            raise ValueError("--split_fractions needs --splits patient")
        names = [name for name, _ in self.split_fractions]
        if len(set(names)) != len(names) or not all(
            re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names
        ):
            raise ValueError(
                "--split_fractions takes each split once, in lower-case letters, digits and "
                f"underscores, received {', '.join(names)}"
            )
        values = [value for _, value in self.split_fractions]
        if not all(0 < value <= 1 for value in values) or abs(sum(values) - 1) > 1e-6:
            raise ValueError(
                "--split_fractions must be positive and add up to 1, received "
                + ", ".join(f"{name}={value:g}" for name, value in self.split_fractions)
            )

    def identity(self) -> dict[str, Any]:
        """Returns what decides the splits and the images that are dropped, by flag."""
        return {
            "splits": self.splits,
            "split_fractions": dict(self.split_fractions) if self.split_fractions else None,
            "split_seed": "auto" if self.split_seed is None else self.split_seed,
            "keep_split": self.keep_split,
            # `fail` writes the same bytes as `keep`, if the build succeeds.
            "leaks": "drop" if self.leaks == "drop" else "keep",
            "duplicates": "drop" if self.duplicates == "drop" else "keep",
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """How the images are shuffled and cut into shards.

    Raises:
        ValueError: if a value is wrong, or two options contradict each other.
    """

    seed: int = flag(0, "seed of the shuffle and of synthetic images", least=0, most=_LARGEST_SEED)
    limit: int | None = flag(
        None, "use at most N images of each split, drawn by the seed, for a trial", least=1
    )
    variants: int = flag(
        0,
        "augmented copies of each image of the train split, made once: mirrored, rotated and "
        "shifted a little, brighter or darker, with speckle",
        least=0,
        most=MAX_VARIANTS,
        metavar="K",
    )
    shard_size_mb: float | None = flag(
        None,
        f"wanted size of a shard (default: {DEFAULT_SHARD_SIZE_MB}, which a network store streams "
        "at full speed; smaller for a small split, so that all cores get work)",
        above=0,
        below=math.inf,
        metavar="MB",
    )
    num_shards: int | None = flag(
        None,
        "number of shards of the largest split, instead of a size; the other splits get "
        "proportionally fewer",
        least=1,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.shard_size_mb is not None and self.num_shards is not None:
            raise ValueError("give either --shard_size_mb or --num_shards, not both")

    def identity(self) -> dict[str, Any]:
        """Returns what decides the order and the shards, by flag."""
        copies = {"variants": self.variants, "augmentation": dict(augment.RECIPE)}
        return {
            "seed": self.seed,
            "limit": self.limit,
            "shard_size_mb": self.shard_size_mb,
            "num_shards": self.num_shards,
            **(copies if self.variants else {}),
        }
