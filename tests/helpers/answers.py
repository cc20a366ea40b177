"""Predictions of no network, and how they are measured."""

import numpy as np
import pyarrow as pa
from marked_images import OCT_NAMES

from tfrecord_io.format.groups import group_images
from train.data.dataset import Dataset
from train.kinds.classes import CLASSES
from train.results import metrics
from train.results.predictions import Predictions


def certain(predicted, num_classes=4):
    """Returns probabilities [num_examples, num_classes] of sure answers."""
    return np.eye(num_classes)[predicted] * 0.97 + 0.01


def dataset_of(num_examples, patients=None, **columns):
    """Returns a dataset of which nothing but its table is known; each example is of one file."""
    keys = [f"k{place}" for place in range(num_examples)]
    columns |= {"patient": patients} if patients else {}
    groups = group_images(pa.table({"path": pa.array(keys, pa.string())} | columns))
    table = pa.table({"key": keys} | columns)
    return Dataset(table=table, groups=groups, measured=(), path=None, manifest=None)


def truths_of(labels, num_classes=4):
    """Returns truths, bool [num_examples, num_classes], of the place of each example's class."""
    return np.eye(num_classes, dtype=bool)[np.asarray(labels, int)]


def predictions_of(probabilities, truths, names=OCT_NAMES, task=CLASSES, **fields):
    """Returns predictions; the truths of classes may be their places."""
    truths = np.asarray(truths)
    truths = truths if truths.ndim == 2 else truths_of(truths, len(names))
    fields = {"dataset": dataset_of(len(truths)), "rows": np.arange(len(truths))} | fields
    return Predictions(
        task=task,
        probabilities=probabilities,
        truths=truths,
        label_names=tuple(names),
        **fields,
    )


def scores_of(probabilities, truths, names=OCT_NAMES, weights=None, task=CLASSES):
    return metrics.scores(predictions_of(probabilities, truths, names, task), weights)


def measured(probabilities, truths, names=OCT_NAMES, task=CLASSES, patients=None, **arguments):
    """Returns what metrics.json says of predictions."""
    dataset = dataset_of(len(truths), patients)
    predictions = predictions_of(probabilities, truths, names, task, dataset=dataset)
    return measured_as(predictions, **arguments)


def measured_as(predictions, num_samples=20, seed=0):
    return metrics.evaluate_predictions(predictions, num_samples, seed)
