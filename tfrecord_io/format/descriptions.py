"""Files by which TensorFlow Datasets reads a dataset: `tfds.builder_from_directory(OUT)`."""

from __future__ import annotations

import json
from typing import Any

from tfrecord_io.format import schema
from tfrecord_io.format.manifest import Manifest

_TFDS = "tensorflow_datasets.core.features"


def for_tfds(dataset: Manifest) -> dict[str, str]:
    """Returns the content of `features.json` and `dataset_info.json` by name.

    The content is what `tfds.folder_dataset.write_metadata` (4.9.10) writes for the same features.
    """
    tensors = {
        schema.IMAGE: ("uint8", "bytes", dataset.image_shape),
        schema.LABEL: ("float32", "none", (dataset.num_classes,)),
    }
    features: dict[str, Any] = {
        name: {
            "pythonClassName": f"{_TFDS}.tensor_feature.Tensor",
            "tensor": {
                "dtype": dtype,
                "encoding": encoding,
                "shape": {"dimensions": [str(size) for size in shape]},
            },
        }
        for name, (dtype, encoding, shape) in tensors.items()
    }
    features[schema.KEY] = {"pythonClassName": f"{_TFDS}.text_feature.Text", "text": {}}
    content = {
        "features.json": {
            "pythonClassName": f"{_TFDS}.features_dict.FeaturesDict",
            "featuresDict": {"features": dict(sorted(features.items()))},
        },
        "dataset_info.json": {
            "name": dataset.name,
            "version": "1.0.0",
            "fileFormat": "tfrecord",
            "splits": [
                {
                    "name": name,
                    "filepathTemplate": "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}",
                    "numBytes": str(split.num_bytes),
                    "shardLengths": [str(shard.num_examples) for shard in split.shards],
                }
                for name, split in dataset.splits.items()
            ],
        },
    }
    return {name: json.dumps(value, indent=1) + "\n" for name, value in content.items()}
