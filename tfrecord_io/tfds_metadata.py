"""The two files by which `tfds.builder_from_directory` reads a dataset, written without TFDS."""

from __future__ import annotations

import json
from typing import Any

from tfrecord_io import schema
from tfrecord_io.manifest import Manifest

_FEATURES = "tensorflow_datasets.core.features"


def describe(manifest: Manifest) -> dict[str, str]:
    """Returns `features.json` and `dataset_info.json` by file name.

    The content is what `tfds.folder_dataset.write_metadata` (4.9.10) writes for the same features.
    """
    described = {"features.json": _features(manifest), "dataset_info.json": _info(manifest)}
    return {name: json.dumps(content, indent=1) + "\n" for name, content in described.items()}


def _features(manifest: Manifest) -> dict[str, Any]:
    return {
        "pythonClassName": f"{_FEATURES}.features_dict.FeaturesDict",
        "featuresDict": {
            "features": {
                schema.IMAGE: _tensor(manifest.dtype, "bytes", manifest.image_shape),
                schema.KEY: {"pythonClassName": f"{_FEATURES}.text_feature.Text", "text": {}},
                schema.LABEL: _tensor("float32", "none", (manifest.num_classes,)),
            }
        },
    }


def _tensor(dtype: str, encoding: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {
        "pythonClassName": f"{_FEATURES}.tensor_feature.Tensor",
        "tensor": {
            "dtype": dtype,
            "encoding": encoding,
            "shape": {"dimensions": [str(size) for size in shape]},
        },
    }


def _info(manifest: Manifest) -> dict[str, Any]:
    return {
        "name": manifest.name,
        "version": "1.0.0",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": name,
                "filepathTemplate": "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}",
                "numBytes": str(split.num_bytes),
                "shardLengths": [str(shard.num_examples) for shard in split.shards],
            }
            for name, split in manifest.splits.items()
        ],
    }
