"""Runs a trunk over the shards of a dataset of images: each image becomes a feature map.

A shard of images makes one shard of the same name, with the same rows, keys and labels. Only this
module of the package imports Keras, in the workers alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipelines import errors
from pipelines.planning.plan import ShardTask
from pipelines.shards.build import Create, Sidecar, Work, WriteTask
from pipelines.stores.output import Storage
from tfrecord_io import flags, manifest, printing, schema, shard_writer
from tfrecord_io.trunk import FILE_NAME

#: Images in each batch for the trunk. The last batch of a shard is filled up with zeros, because a
#: batch of another size would need another graph.
BATCH_SIZE = 32

#: Types in which feature maps are stored.
DTYPES = ("float16", "float32")

# Workers may share a GPU, so TensorFlow and JAX must not take all of its memory.
_KERAS_SETTINGS = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}

# A cluster's worker may load in several threads, and the noise is hidden for the whole process.
_loading = threading.Lock()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extraction(Work):
    """A dataset of feature maps that workers write.

    Attributes:
        data: folder or URL of the dataset of images.
        images: its manifest. The draft of the output has its splits, and the trunk's facts.
    """

    data: str
    images: manifest.Manifest

    def tasks(self) -> list[ShardTask]:
        """Returns a task for each shard of images."""
        numbers = itertools.count()
        return [
            ShardTask(next(numbers), name, index, len(split.shards), shard.num_examples)
            for name, split in self.images.splits.items()
            for index, shard in enumerate(split.shards)
        ]


def feature_writer(extraction: Extraction) -> WriteTask:
    """Loads the trunk and returns a function that writes the shards of an extraction."""
    model = _load_trunk(extraction)
    import keras

    backend = keras.backend.backend()
    devices = {name.split(":")[0] for name in keras.distribution.list_devices()}
    # What decides the last digits of the features.
    computed_by = {
        "device": ",".join(sorted(devices - {"cpu"} or {"cpu"})),
        "keras": keras.__version__,
        backend: importlib.metadata.version(backend),
    }
    trunk = model.predict_on_batch
    return lambda task, create: write_features(extraction, task, trunk, create, computed_by)


def write_features(
    extraction: Extraction,
    task: ShardTask,
    trunk: Callable[[np.ndarray], np.ndarray],
    create: Create,
    computed_by: dict[str, str],
) -> None:
    """Writes the feature maps of one shard, and its sidecar, which names device and versions.

    `trunk` turns uint8 images [BATCH_SIZE, height, width, channels] into float32 features
    [BATCH_SIZE, ...] of its shape.

    Raises:
        errors.BuildError: if the shard of images is not what its manifest says, or a feature is
            not a number or too large for the dtype.
    """
    source = extraction.images.splits[task.split].shards[task.shard_index]
    layout = extraction.draft.layout
    label_counts = np.zeros(layout.num_classes, np.int64)
    with create(task.shard_name) as file, shard_writer.ShardWriter(file, layout) as writer:
        for images, labels, keys in _read_batches(extraction, source):
            filled = np.zeros((BATCH_SIZE, *images.shape[1:]), np.uint8)
            filled[: len(images)] = images
            features = trunk(filled)[: len(images)]
            with np.errstate(over="ignore"):
                stored = features.astype(layout.numpy_dtype)
            if not np.isfinite(stored).all():
                advice = "; use --dtype float32" if np.isfinite(features).all() else ""
                raise errors.BuildError(
                    f"{extraction.data}/{source.name}: the trunk gives values that {stored.dtype} "
                    f"cannot hold (up to {np.abs(features).max():g}){advice}"
                )
            for feature, label, key in zip(stored, labels, keys, strict=True):
                writer.write(feature.tobytes(), label, key)
            label_counts += layout.label_kind.count(labels)
    sidecar = Sidecar(
        fingerprint=extraction.draft.fingerprint,
        shard=task.shard_name,
        num_refs=task.num_refs,
        num_examples=task.num_refs,
        num_bytes=task.num_refs * layout.stride,
        sha256=writer.sha256,
        label_counts=tuple(label_counts.tolist()),
        computed_by=computed_by,
    )
    sidecar.write(create)


def describe_features(
    extraction: Extraction, tasks: Sequence[ShardTask], sidecars: Sequence[Sidecar]
) -> manifest.Manifest:
    """Writes the tables and the card of the feature maps, and returns their manifest.

    What is known of the images holds for their features: tables, ledger and audit are carried over.
    """
    # Imported here because a launcher that starts the job on a cluster does not render the card.
    from pipelines.report import card

    storage, data = extraction.storage, Storage(extraction.data)
    # The same device and versions usually computed all shards.
    texts = {json.dumps(sidecar.computed_by) for sidecar in sidecars}
    computed_by = sorted(map(json.loads, texts), key=str)
    made = extraction.with_shards(tasks, sidecars)
    made = dataclasses.replace(made, source={**made.source, "computed_by": computed_by})
    tables = manifest.EXAMPLES_FILE_NAME, manifest.REJECTS_FILE_NAME, manifest.DROPPED_FILE_NAME
    for name in tables:
        if data.exists(name):
            storage.write(name, data.read(name))
    storage.write(manifest.REPORT_FILE_NAME, card.render_features(made).encode())
    return made


def _load_trunk(extraction: Extraction) -> Any:
    """Loads the copy of the trunk that is in the output folder."""
    for name, value in _KERAS_SETTINGS.items():
        os.environ.setdefault(name, value)
    if importlib.util.find_spec("tensorflow") is None:
        os.environ.setdefault("KERAS_BACKEND", "jax")
    storage, expected = extraction.storage, extraction.draft.image_shape
    with (
        _loading,
        printing.hide_native_noise(errors.BuildError),
        tempfile.TemporaryDirectory() as folder,
    ):
        try:
            import keras
        except ImportError as error:
            raise errors.BuildError(
                f"the worker needs Keras and TensorFlow or JAX, but {error}; "
                "run pip install '.[train]' in the clone of this project"
            ) from error
        path = Path(folder) / FILE_NAME
        path.write_bytes(storage.read(FILE_NAME))
        try:
            model = keras.saving.load_model(path, compile=False)
        except (ValueError, OSError, TypeError, KeyError) as error:
            raise errors.BuildError(f"Keras cannot load the trunk: {error}") from error
    if (given := tuple(model.output_shape[1:])) != expected:
        raise errors.BuildError(
            f"the trunk says that its features have the shape {expected}, but its network gives "
            f"{given}; write it again with {flags.command('trunk')}"
        )
    return model


def _read_batches(
    extraction: Extraction, shard: manifest.Shard
) -> Iterator[tuple[np.ndarray, np.ndarray, list[str]]]:
    """Yields (uint8 images, labels, keys) of a shard, up to BATCH_SIZE at once."""
    data, layout = Storage(extraction.data), extraction.images.layout
    digest = hashlib.sha256()
    with data.open_arrow(shard.name) as file:
        # A shard that was cut off ends within a record; its digest shows it below.
        for records in layout.read_records(file, BATCH_SIZE):
            digest.update(records)
            keys = [bytes(key).decode() for key in layout.bytes_in(records, schema.KEY)]
            yield layout.images_in(records), layout.labels_in(records), keys
    if digest.hexdigest() != shard.sha256:
        raise errors.BuildError(
            f"{data.path(shard.name)} has SHA-256 {digest.hexdigest()[:12]}…, but the dataset's "
            f"manifest says {shard.sha256[:12]}…; check it with {flags.command('verify')} "
            f"{extraction.data}, and build it again"
        )
