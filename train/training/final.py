"""The network that a run exports, and its answers to the images that measure it.

The evaluation asks this very network, so the report is what the export and `predict` compute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from train.networks.models import Network
from train.results import metrics, thresholds
from train.results.predictions import Predictions
from train.training.session import Session


class Final(NamedTuple):
    """The network to export, the temperature in it, and its thresholds, see `choose_thresholds`."""

    network: Network
    temperature: float
    thresholds: Sequence[Mapping[str, Any]]


def finish(session: Session, weights: Sequence[np.ndarray]) -> Final:
    """Builds the network to export, of the kept weights, in float32 whatever the training used."""
    plan = session.plan
    if not plan.fitted_part:
        return Final(session.build_network("float32", values=weights, is_final=True), 1.0, ())
    network = session.build_network("float32", values=weights)
    val = session.predict(network, plan.fitted_part)
    temperature = plan.task.fit_temperature(val.probabilities, val.truths)
    cooled = plan.task.cool(val.probabilities, temperature)
    val = dataclasses.replace(val, probabilities=cooled)
    chosen = thresholds.choose_thresholds(val, plan.config.thresholds.sensitivity)
    network = session.build_network(
        "float32", values=weights, temperature=temperature, is_final=True
    )
    return Final(network, temperature, chosen)


def measure(session: Session, final: Final) -> tuple[dict[str, Any], Predictions | None]:
    """Returns what metrics.json says of the evaluated part, and the predictions of it.

    All workers predict, so all of them call this.
    """
    plan, evaluated, fitted = session.plan, session.plan.parts.evaluated, session.plan.fitted_part
    if not evaluated:
        return {"split": None}, None
    predictions = session.predict(final.network, evaluated)
    if fitted:
        raw = plan.task.cool(predictions.probabilities, 1 / final.temperature)
        predictions = dataclasses.replace(predictions, uncalibrated=raw)
    results = metrics.measure(predictions, plan.measures, plan.seed, final.thresholds)
    results = {"split": evaluated.name} | results
    if fitted:
        facts = {"fitted_on": "val", "num_examples": fitted.num_examples}
        told = thresholds.describe_calibration(predictions, final.temperature)
        results["calibration"] = facts | told
    return results, predictions
