"""How long steps take."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping
from typing import Any

from train.networks.models import Network
from train.training.session import Session
from train.training.steps import Steps


def prepare_steps(session: Session, *, num_steps: int) -> tuple[Session, Network, Steps]:
    """Returns a session of at least so many steps, its network of any weights, and its steps."""
    plan = session.plan
    wanted = num_steps * (plan.config.input.global_batch_size or 0)
    epochs = wanted // plan.parts.train.num_examples + 1
    network = session.build_network(plan.config.devices.precision)
    longer = plan.config.replace(epochs=epochs, head_epochs=None)
    session = dataclasses.replace(session, plan=dataclasses.replace(plan, config=longer))
    return session, network, session.training_steps(network)


def time_rounds(
    steps: Steps, sources: Mapping[str, Any], *, num_steps: int, num_rounds: int
) -> dict[str, tuple[float, float]]:
    """Trains on batches of several sources by turns, after a round of each that does not count.

    Returns for each source the median seconds of a round of `num_steps`, and the share of all its
    seconds in which steps waited for input.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    waited = dict.fromkeys(sources, 0.0)
    for source in sources.values():
        steps.train(source)  # builds the graph
    for _ in range(num_rounds):
        for name, source in sources.items():
            started = time.perf_counter()
            for _ in range(num_steps):
                waited[name] += steps.train(source).wait_seconds
            seconds[name].append(time.perf_counter() - started)
    return {
        name: (statistics.median(taken), waited[name] / sum(taken))
        for name, taken in seconds.items()
    }
