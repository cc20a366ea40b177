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
from tfrecord_io.terminal.flags import command
from tfrecord_io.terminal.printing import counted, listed
from tfrecord_io.terminal.spelling import rename_flag
from train.machine.errors import TrainingError
from train.networks.models import Network, restore
from train.training.checkpoint import BEST_NAME, load_checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstWeights:
    """The weights of the run of `--init`, the names of its outputs, and those of the new run."""

    init: str
    folder: Path
    values: Sequence[np.ndarray]
    theirs: tuple[str, ...]
    ours: tuple[str, ...]

    @classmethod
    def of(cls, init: str, folder: Path, manifest: Manifest) -> FirstWeights:
        """Reads the weights of a run, and the names of its outputs.

        Raises:
            UserError: if it is not finished or damaged, or has no output that the dataset names.
        """
        try:
            facts, groups = load_checkpoint(folder / BEST_NAME)
            check_types(facts, {"label_names": [str]}, BEST_NAME)
            theirs = kind_in(facts)
        except (TrainingError, KeyError, ValueError):
            raise UserError(
                f"--init {init} is not a finished run: its {BEST_NAME} is missing or damaged; of a "
                "cross-validation, name one of its runs, such as fold-0"
            ) from None
        ours, names = manifest.label_kind, tuple(facts["label_names"])
        if ours.one_hot != theirs.one_hot:
            raise UserError(
                f"--init {init} learned {theirs.plural}, but the dataset has {ours.plural}; give a "
                "dataset with such labels, or leave --init out"
            )
        if not {*names} & {*manifest.label_names}:
            raise UserError(
                f"--init {init} knows the {theirs.plural} {listed(names, 10)}, but the dataset has "
                f"{listed(manifest.label_names, 10)}, and outputs follow their names; build the "
                f"dataset with these names, such as {command('build')} ... "
                f"{rename_flag(dict.fromkeys(manifest.label_names[:10], 'NAME'))}, or leave --init "
                "out"
            )
        values = groups["model"]
        return cls(init=init, folder=folder, values=values, theirs=names, ours=manifest.label_names)

    def describe(self, num_seen: int) -> str:
        """Returns where the weights are from, and what becomes of each output."""
        outputs = {
            "kept": [name for name in self.ours if name in self.theirs],
            "new, untrained": [name for name in self.ours if name not in self.theirs],
            "lost": [name for name in self.theirs if name not in self.ours],
        }
        parts = (f"{what}: {listed(names)}" for what, names in outputs.items() if names)
        return (
            f"starts from the weights of {self.init}, which have seen "
            f"{counted(num_seen, 'image')}; outputs {'; '.join(parts)}"
        )

    def load(self, network: Network) -> None:
        """Gives the weights to a new network, whose other outputs stay as they are.

        Raises:
            UserError: if the network is another one.
        """
        values, variables = [*self.values], network.model.variables
        of_outputs = {id(variable) for variable in network.logits.get_layer("logits").variables}
        theirs = [*self.theirs]
        places = np.array([theirs.index(name) if name in theirs else -1 for name in self.ours])
        try:
            for index, variable in enumerate(variables[: len(values)]):
                if id(variable) in of_outputs:  # the outputs are the last axis
                    moved = values[index][..., places]
                    values[index] = np.where(places < 0, variable.numpy(), moved)
            restore(variables, values)
        except (TrainingError, ValueError, IndexError):
            raise UserError(
                f"the weights of --init {self.init} do not fit: the network, and the size and "
                "the channels of the images, must be those of that run; leave --model out to take "
                "its network, and build the dataset as its dataset was"
            ) from None
