"""Descriptions of a dataset by which other programs read it: TFDS, and all that know Croissant."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from tfrecord_io.format import examples, schema
from tfrecord_io.format.manifest import Manifest

_TFDS = "tensorflow_datasets.core.features"

# The context of version 1.0, as the specification prints it.
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{
        name: f"cr:{name}"
        for name in (
            "citeAs", "column", "equivalentProperty", "extract", "field", "fileObject",
            "fileProperty", "fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key",
            "md5", "parentField", "path", "recordSet", "references", "regex", "repeated", "replace",
            "samplingRate", "separator", "source", "subField", "transform",
        )
    },
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}  # fmt: skip


def for_tfds(dataset: Manifest) -> dict[str, str]:
    """Returns `features.json` and `dataset_info.json` by name, for `tfds.builder_from_directory`.

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


def croissant(dataset: Manifest, table: pa.NativeFile) -> str:
    """Returns the content of `croissant.json`; equal datasets give equal bytes.

    It lists the shards and the examples table as files with their SHA-256, and the columns of the
    table as fields of a set of records. The terms are those of version 1.0 of the specification,
    https://docs.mlcommons.org/croissant/docs/croissant-spec-1.0.html.
    """
    columns = pq.read_schema(table)
    table.seek(0)
    sha256 = hashlib.file_digest(table, "sha256").hexdigest()
    files = [(examples.FILE_NAME, "application/x-parquet", table.tell(), sha256)]
    for shard in dataset.shards:
        files.append((shard.name, "application/x-tfrecord", shard.num_bytes, shard.sha256))
    shape = " x ".join(map(str, dataset.image_shape))
    content = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": dataset.name,
        "description": (
            f"{dataset.num_examples} examples as TFRecord shards of tf.train.Example: `image` "
            f"(uint8, {shape}), `label` ({', '.join(dataset.label_names)}) and `key`. "
            f"{examples.FILE_NAME} has a row for each example."
        ),
        "version": "1.0.0",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": name,
                "name": name,
                "contentUrl": name,
                "contentSize": f"{num_bytes} B",
                "encodingFormat": encoding,
                "sha256": sha256,
            }
            for name, encoding, num_bytes, sha256 in files
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "examples",
                "name": "examples",
                "description": "One record for each example: where it is stored, its label, "
                "its patient and facts about the file that it was made from.",
                "key": {"@id": "examples/key"},
                "field": list(_fields(columns)),
            }
        ],
    }
    return json.dumps(content, indent=1) + "\n"


def _fields(columns: pa.Schema) -> Iterator[dict[str, Any]]:
    """Yields the columns, except bytes and lists, for which Croissant has no type."""
    kinds = {
        "sc:Text": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
        "sc:Integer": pa.types.is_integer,
        "sc:Float": pa.types.is_floating,
        "sc:Boolean": pa.types.is_boolean,
    }
    for column, (name, is_kind) in itertools.product(columns, kinds.items()):
        if is_kind(column.type):
            yield {
                "@type": "cr:Field",
                "@id": f"examples/{quote(column.name, safe='')}",
                "name": column.name,
                "dataType": name,
                "source": {
                    "fileObject": {"@id": examples.FILE_NAME},
                    "extract": {"column": column.name},
                },
            }
