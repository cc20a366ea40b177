"""How long the steps of a planned training take, whatever the values of its weights."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping
from typing import Any

from train.training.config import TrainConfig
from train.training.session import Session, open_sessions
from train.training.steps import Steps


def prepare_steps(config: TrainConfig, *, num_steps: int) -> tuple[Session, Steps]:
    """Returns a training of at least so many steps, and its steps, of random weights."""
    session = open_sessions(config)[0]
    wanted = num_steps * (session.config.input.global_batch_size or 0)
    epochs = wanted // session.parts.train.num_examples + 1
    longer = session.config.replace(epochs=epochs, head_epochs=None)
    session = dataclasses.replace(session, config=longer)
    return session, session.training_steps(session.build_network(longer.devices.precision))


def time_rounds(
    steps: Steps, sources: Mapping[str, Any], *, num_steps: int, num_rounds: int
) -> dict[str, tuple[float, float]]:
    """Trains on batches of several sources by turns, after a round of each that does not count.

    Returns for each source the median seconds of a round of `num_steps`, and the share of all its
    seconds in which steps waited for input.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    waited = dict.fromkeys(sources, 0.0)
    for number in range(num_rounds + 1):
        for name, source in sources.items():
            started = time.perf_counter()
            waits = sum(steps.train(source).wait_seconds for _ in range(num_steps))
            if number:  # the first round builds the graph
                seconds[name].append(time.perf_counter() - started)
                waited[name] += waits
    return {
        name: (statistics.median(durations), waited[name] / sum(durations))
        for name, durations in seconds.items()
    }
