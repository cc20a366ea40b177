"""Predictions of no network, and how they are measured."""

import numpy as np
from marked_images import OCT_NAMES

from train.data.examples import Examples
from train.kinds.classes import CLASSES
from train.kinds.task import Answers
from train.results import metrics
from train.results.predictions import Predictions


def certain(predicted, num_classes=4):
    """Returns probabilities [num_examples, num_classes] of sure answers."""
    return np.eye(num_classes)[predicted] * 0.97 + 0.01


def answers_of(probabilities, truths, names=OCT_NAMES):
    return Answers(probabilities=probabilities, truths=np.asarray(truths), label_names=tuple(names))


def predictions_of(probabilities, truths, names=OCT_NAMES, task=CLASSES, **fields):
    keys = tuple(f"k{place}" for place in range(len(truths)))
    fields = {"examples": Examples(keys=keys, patients=None, paths=None)} | fields
    return Predictions(
        task=task, probabilities=probabilities, truths=truths, label_names=tuple(names), **fields
    )


def scores_of(probabilities, truths, names=OCT_NAMES, weights=None, task=CLASSES):
    return metrics.scores(task, answers_of(probabilities, truths, names), weights)


def measured(probabilities, truths, names=OCT_NAMES, task=CLASSES, **arguments):
    """Returns what metrics.json says of predictions."""
    arguments = {"groups": None, "num_samples": 20, "seed": 0} | arguments
    return metrics.evaluate_predictions(task, answers_of(probabilities, truths, names), **arguments)
