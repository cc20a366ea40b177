"""One run: train a network, keep one epoch's weights, export them, evaluate them on the test split.

It can be killed at any moment. Called again with the same configuration, it goes on at the next
example after a stop, and at the last checkpoint after a kill. A checkpoint holds the variables, the
optimizer, the best weights and `progress.Progress`; everything else in the folder is written from
them.
"""

from __future__ import annotations

import json
from typing import Any

from train.data import seen
from train.devices import set_seed
from train.errors import ConfigError
from train.run_folder import METRICS_NAME, claim
from train.run_setup import Run
from train.training.finishing import finish
from train.training.training_loop import train


def train_once(run: Run) -> dict[str, Any]:
    """Trains, evaluates and exports one network, see `trainer.train_and_evaluate`."""
    set_seed(run.config.input.seed)
    with claim(run):
        if (path := run.folder / METRICS_NAME).exists():
            try:
                results = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise ConfigError(
                    f"{path} is damaged ({error}); remove it, and the same command evaluates the "
                    "run again"
                ) from None
            run.devices.say(f"the run in {run.folder} is complete; nothing to do")
            return results
        if run.devices.is_chief:
            run.seen.write(run.folder / seen.FILE_NAME)
        progress, best = train(run)
        return finish(run, progress, best)
