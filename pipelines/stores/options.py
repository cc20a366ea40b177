"""The options of the output: where the dataset goes, its name, and what it may lack or hide."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from tfrecord_io.flags import check, flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where the dataset goes, and what it may lack or hide.

    Raises:
        ValueError: if a value is wrong.
    """

    output: str = flag("data/tfrecords", "folder or URL of the dataset", metavar="DIR")
    name: str | None = flag(
        None, "name of the dataset (default: made from the source or the input)", metavar="NAME"
    )
    max_reject_fraction: float = flag(
        0.01, "fail if more than this share of the images cannot be used", least=0, most=1
    )
    anonymize: Path | None = flag(
        None,
        "put no name or path of the input into any output: images and patients get codes, made "
        "with the secret in FILE, which stays outside --output (docs/privacy.md)",
        metavar="FILE",
    )
    overwrite: bool = flag(
        False, "delete the dataset in the output folder, finished or not, and build it anew"
    )

    def __post_init__(self) -> None:
        check(self)
        if not self.output.strip("/"):
            raise ValueError(f"--output must be a folder of its own, received {self.output!r}")
        if self.name is not None and not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(
                f"--name must be lower-case letters, digits and underscores, received {self.name!r}"
            )
