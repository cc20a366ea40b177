"""The training scans that look most like a new one, by the features of the run's trunk.

Feature maps are averaged over their height and width, so that a scan that is cropped, mirrored or
turned has similar features. The similarity is the cosine of two scans' differences from the mean
training scan: 1 for the same features, about 0 for scans that have nothing in common.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import keras
import numpy as np

import tfrecord_io
from tfrecord_io.auditing import neighbours
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.trunk import FILE_NAME, find_trunk
from train import config
from train.config import ConfigError
from train.data.examples import read_examples
from train.kinds.registry import task_of

_SPLIT = "train"
_ROWS_AT_ONCE = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilarScan:
    """A training scan that looks like another one.

    Attributes:
        path: its source file, or its key if the dataset does not name files.
        label: name of its class, or names of its labels.
        similarity: cosine in -1..1.
    """

    path: str
    label: str
    similarity: float

    def __str__(self) -> str:
        return f"{self.path} ({self.label}, {self.similarity:.3f})"


class TrainingScans:
    """The training scans of a run on features, for searching."""

    def __init__(self, run: Path) -> None:
        """Reads the features of all training scans once.

        Args:
            run: folder of a run on a dataset of features, which must still be there.

        Raises:
            ConfigError: if the run was trained on images, or on another dataset than is there now.
            tfrecord_io.ManifestError: if the dataset cannot be used.
        """
        content = config.load(run)
        fields, data = content["config"], content["config"]["data"]
        if fields.get("fold") is not None:
            raise ConfigError(
                f"--similar searches the split train, but {run} is a fold, which was trained on "
                "other images; give a run without --folds"
            )
        manifest = tfrecord_io.Manifest.load(data)
        if find_trunk(data, manifest) is None:
            raise ConfigError(
                f"--similar compares features, but {run} was trained on images; extract features "
                "with python pipelines/extract_features.py, and train on them"
            )
        if manifest.fingerprint != content["dataset"]["fingerprint"]:
            raise ConfigError(
                f"{data} holds another dataset than {run} was trained on, whose scans --similar "
                "would show; put that dataset back, or leave the flag out"
            )
        self._trunk = keras.saving.load_model(Path(data) / FILE_NAME, compile=False)
        dataset = MappedDataset(data, _SPLIT)
        places = np.arange(len(dataset))
        blocks = np.array_split(places, -(-len(places) // _ROWS_AT_ONCE))
        features = np.concatenate([neighbours.pool(dataset[block][0]) for block in blocks])
        self._mean = features.mean(axis=0)
        self._directions = neighbours.directions(features - self._mean)
        task = task_of(manifest.label_kind)
        self._labels = task.texts(task.truths(dataset.labels(places)), manifest.label_names)
        examples = read_examples(data, _SPLIT)
        self._paths = examples.paths or examples.keys

    def nearest(self, images: np.ndarray, count: int) -> list[tuple[SimilarScan, ...]]:
        """Returns the most similar training scans of each image, the most similar first.

        Args:
            images: uint8 [batch, height, width, channels].
            count: number of scans; of a scan and its augmented copies one is returned.
        """
        features = neighbours.pool(keras.ops.convert_to_numpy(self._trunk(images, training=False)))
        similarities = neighbours.directions(features - self._mean) @ self._directions.T
        found = []
        for row in similarities:
            scans: dict[str, SimilarScan] = {}
            for place in np.argsort(-row, kind="stable").tolist():
                path = self._paths[place]
                scan = SimilarScan(
                    path=path, label=self._labels[place], similarity=float(row[place])
                )
                scans.setdefault(path, scan)
                if len(scans) == count:
                    break
            found.append(tuple(scans.values()))
        return found
