"""The powers beside the way, named once for all commands of the trainer.

Delete a file in `train/extras/` and the lines with its name here, and the rest works without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import train.extras.bucket
import train.extras.by_patient
import train.extras.card
import train.extras.occlusion
import train.extras.onnx
import train.extras.preview
from train.machine.places import RunFolder
from train.results.additions import Additions

if TYPE_CHECKING:
    from train.training.config import TrainConfig


def _local_folder(workdir: str) -> AbstractContextManager[RunFolder]:
    return contextlib.nullcontext(RunFolder.at(workdir))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Powers(Additions):
    """What a command may do besides its own work.

    Attributes:
        working_folder: yields the folder of a run to train in, of a path or an address.
        preview: shows what a training would be, instead of it.
        maps: class that `predict` makes of its flags, which its `add_arguments` adds; its `write`
            draws a map for each predicted image.
        together: likewise; its `together` returns answers for images that belong together.
    """

    working_folder: Callable[[str], AbstractContextManager[RunFolder]] = _local_folder
    preview: Callable[[TrainConfig], None] | None = None
    maps: type[Any] | None = None
    together: type[Any] | None = None


POWERS = Powers(
    working_folder=train.extras.bucket.working_folder,
    open_run=train.extras.bucket.open_run,
    preview=train.extras.preview.preview,
    explain=train.extras.occlusion.explain,
    maps=train.extras.occlusion.Maps,
    together=train.extras.by_patient.ByPatient,
    forms=(train.extras.onnx.write,),
    after=(train.extras.card.write_card,),
)
