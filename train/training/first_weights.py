"""The weights of a finished run that another run starts from: outputs follow their names.

The datasets of both may have their classes in another order, and may not have the same ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfrecord_io.format.kinds import kind_in
from tfrecord_io.format.manifest import Manifest, check_types
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.printing import listed
from train.machine.errors import TrainingError
from train.networks.models import Network, restore
from train.training.checkpoint import BEST_NAME, load_checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstWeights:
    """The weights of the run of `--init`, and where each output of the new run is among its own.

    Attributes:
        places: int64 [num_classes]; -1 for an output that it does not have.
        outputs: what becomes of each output, for a message.
    """

    init: str
    folder: Path
    values: Sequence[np.ndarray]
    places: np.ndarray
    outputs: str

    @classmethod
    def of(cls, init: str, folder: Path, manifest: Manifest) -> FirstWeights:
        """Reads the weights of a run, and the names of its outputs.

        Raises:
            UserError: if it is not finished or damaged, or has no output that the dataset names.
        """
        try:
            facts, groups = load_checkpoint(folder / BEST_NAME)
            check_types(facts, {"label_names": [str]}, BEST_NAME)
            kind, theirs = kind_in(facts), facts["label_names"]
        except (TrainingError, KeyError, ValueError):
            raise UserError(
                f"--init {init} is not a finished run: its {BEST_NAME} is missing or damaged; of a "
                "cross-validation, name one of its runs, such as fold-0"
            ) from None
        ours = manifest.label_names
        kept = [name for name in ours if name in theirs]
        if not kept or manifest.label_kind.one_hot != kind.one_hot:
            raise UserError(
                f"--init {init} learned the {kind.plural} {listed(theirs, 10)}, but the dataset "
                f"has the {manifest.label_kind.plural} {listed(ours, 10)}, and outputs follow "
                "their names; build the dataset with these names (--rename_classes), or leave "
                "--init out"
            )
        become = {
            "kept": kept,
            "new, untrained": [name for name in ours if name not in theirs],
            "lost": [name for name in theirs if name not in ours],
        }
        return cls(
            init=init,
            folder=folder,
            values=groups["model"],
            places=np.array([theirs.index(name) if name in theirs else -1 for name in ours]),
            outputs="; ".join(f"{what}: {listed(each)}" for what, each in become.items() if each),
        )

    def load(self, network: Network) -> None:
        """Gives the weights to a new network, whose other outputs stay as they are.

        Raises:
            UserError: if the network is another one.
        """
        values, variables = [*self.values], network.model.variables
        of_outputs = {id(variable) for variable in network.logits.get_layer("logits").variables}
        try:
            for index, variable in enumerate(variables[: len(values)]):
                if id(variable) in of_outputs:  # the outputs are the last axis
                    moved = values[index][..., self.places]
                    values[index] = np.where(self.places < 0, variable.numpy(), moved)
            restore(variables, values)
        except (TrainingError, ValueError, IndexError):
            raise UserError(
                f"the weights of --init {self.init} do not fit: the network, and the size and "
                "the channels of the images, must be those of that run; leave --model out to take "
                "its network, and build the dataset as its dataset was"
            ) from None
