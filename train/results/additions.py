"""What is made of a finished run besides its own files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from train.machine.places import open_local

if TYPE_CHECKING:
    from train.results.examples import Explain
    from train.results.sections import Result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Additions:
    """What a command adds to a training or an evaluation.

    Attributes:
        open_run: returns the local folder of a finished run.
        explain: makes pictures that explain mistakes; None for no explanation.
        forms: write another form of the model into an export folder, or say why not.
        after: are called with the export folder and the result of each finished run, which has all
            its files but metrics.json.
    """

    open_run: Callable[[str], Path] = open_local
    explain: Explain | None = None
    forms: Sequence[Callable[[Path], str]] = ()
    after: Sequence[Callable[[Path, Result], object]] = ()
