"""The powers beside the way, named once for all commands of the trainer.

Delete a file in `train/extras/` and the lines with its name here, and the rest works without it.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import train.extras.bucket
import train.extras.by_patient
import train.extras.card
import train.extras.occlusion
import train.extras.onnx
import train.extras.preview
from train.machine.places import RunFolder, open_local

if TYPE_CHECKING:
    from train.results.classifier import Classifier, Prediction
    from train.results.examples import Explain
    from train.results.write import Finished
    from train.training.config import TrainConfig


def _local_folder(workdir: str) -> AbstractContextManager[RunFolder]:
    return contextlib.nullcontext(RunFolder.at(workdir))


class Maps(Protocol):
    """What `predict` draws of each image: made of the flags, it writes when all are predicted."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None: ...

    def __init__(self, arguments: argparse.Namespace) -> None: ...

    def write(self, classifier: Classifier, predictions: Sequence[Prediction]) -> None: ...


class Together(Protocol):
    """How `predict` answers for several images at once: made of the flags, like `Maps`."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None: ...

    def __init__(self, arguments: argparse.Namespace) -> None: ...

    def together(
        self, classifier: Classifier, predictions: Sequence[Prediction]
    ) -> Sequence[Prediction]: ...


class Powers(NamedTuple):
    """What a command may do besides its own work.

    Attributes:
        working_folder: yields the folder of a run to train in, of a path or an address.
        open_run: returns the local folder of a finished run.
        preview: shows what a training would be, instead of it.
        explain: makes pictures that explain mistakes.
        forms: write another form of the model into an export folder, or say why not.
        after: is called with each finished run.
        maps: draws a map for each predicted image: its flags, and what it does with them.
        together: answers for images that belong together, likewise.
    """

    working_folder: Callable[[str], AbstractContextManager[RunFolder]] = _local_folder
    open_run: Callable[[str], Path] = open_local
    preview: Callable[[TrainConfig], None] | None = None
    explain: Explain | None = None
    forms: Sequence[Callable[[Path], str]] = ()
    after: Sequence[Callable[[Finished], object]] = ()
    maps: type[Maps] | None = None
    together: type[Together] | None = None


POWERS = Powers(
    working_folder=train.extras.bucket.working_folder,
    open_run=train.extras.bucket.open_run,
    preview=train.extras.preview.preview,
    explain=train.extras.occlusion.explain,
    maps=train.extras.occlusion.Maps,
    together=train.extras.by_patient.ByPatient,
    forms=(train.extras.onnx.write,),
    after=(train.extras.card.after,),
)
