"""Predictions of no network, and how they are measured."""

import numpy as np
import pyarrow as pa
from marked_images import OCT_NAMES

from tfrecord_io.groups import group_images
from train.data.dataset import Examples
from train.kinds.classes import CLASSES
from train.results import metrics
from train.results.predictions import Predictions


def certain(predicted, num_classes=4):
    """Returns probabilities [num_examples, num_classes] of sure answers."""
    return np.eye(num_classes)[predicted] * 0.97 + 0.01


def examples_of(num_examples, patients=None, **fields):
    """Returns the identities of examples, each of a file of its own."""
    keys = tuple(f"k{place}" for place in range(num_examples))
    images = {"path": pa.array(keys, pa.string())} | ({"patient": patients} if patients else {})
    groups = group_images(pa.table(images))
    unknown = (None,) * num_examples
    known = {"patients": tuple(patients or unknown), "paths": unknown, "measured": {}} | fields
    return Examples(keys=keys, groups=groups, **known)


def predictions_of(probabilities, truths, names=OCT_NAMES, task=CLASSES, **fields):
    fields = {"examples": examples_of(len(truths))} | fields
    return Predictions(
        task=task,
        probabilities=probabilities,
        truths=np.asarray(truths),
        label_names=tuple(names),
        **fields,
    )


def scores_of(probabilities, truths, names=OCT_NAMES, weights=None, task=CLASSES):
    return metrics.scores(task, predictions_of(probabilities, truths, names), weights)


def measured(probabilities, truths, names=OCT_NAMES, task=CLASSES, patients=None, **arguments):
    """Returns what metrics.json says of predictions."""
    examples = examples_of(len(truths), patients)
    predictions = predictions_of(probabilities, truths, names, task, examples=examples)
    return measured_as(predictions, **arguments)


def measured_as(predictions, num_samples=20, seed=0):
    return metrics.evaluate_predictions(
        predictions, prevalences={}, num_samples=num_samples, seed=seed
    )
