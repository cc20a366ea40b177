"""Calibrated probabilities: the temperature that suits a network's answers.

It is fitted on the validation split alone and then measured on the test split.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize

#: Limits of a fitted temperature. A fit that reaches them has too few images; the logits of a
#: trained network do not need so large a change.
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.25, 4.0

# Weight of the prior belief in a temperature of 1, see `fit_temperature`.
_PRIOR_STRENGTH = 2.0


def fit_temperature(scores: np.ndarray, labels: np.ndarray) -> float:
    """Returns the temperature T that minimizes the cross-entropy of softmax(scores / T).

    Source: Guo et al. 2017, "On calibration of modern neural networks", section 4.2. A weak prior
    is added: a Gamma distribution of 1/T with mode 1, worth about two to ten images. With a hundred
    images it hardly matters. With few it keeps the result sensible: the cross-entropy alone has no
    minimum if all answers are right or there is only one class. Without any image, T is 1. The sum
    is convex in 1/T, so the minimum is unique.

    Args:
        scores: float [num_examples, num_classes], finite logits or log probabilities.
        labels: int [num_examples].

    Returns:
        T in 0.25..4; above 1 for an overconfident network.
    """
    # Relative to the true class, the cross-entropy of a row is its log-sum-exp.
    rows = scores.astype(np.float64) - scores[np.arange(len(labels)), labels, None]

    def loss(log_temperature: float) -> float:
        inverse = np.exp(-log_temperature)
        prior = _PRIOR_STRENGTH * (inverse - 1 + log_temperature)
        return float(prior + np.logaddexp.reduce(rows * inverse, axis=-1).sum())

    bounds = (np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE))
    found = optimize.minimize_scalar(
        loss, bounds=bounds, method="bounded", options={"xatol": 1e-7, "maxiter": 200}
    )
    return float(np.exp(found.x))


def log_probabilities(probabilities: np.ndarray) -> np.ndarray:
    """Returns the logarithms of probabilities, float64; those of 0 are finite."""
    tiny = np.finfo(np.float32).tiny
    return np.log(np.maximum(probabilities.astype(np.float64), tiny))


def apply_temperature(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Returns softmax(logits / T), computed from softmax(logits) [..., num_classes].

    The classes keep their order, but two close probabilities may become equal by rounding.
    """
    logarithms = log_probabilities(probabilities) / temperature
    powers = np.exp(logarithms - logarithms.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True)).astype(probabilities.dtype)
