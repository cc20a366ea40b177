"""The columns beside the images in a Parquet file: numbers, texts, and classes by their names.

Metadata of the schema name the classes, as Hugging Face writes them, see
https://huggingface.co/docs/datasets/about_dataset_features.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfrecord_io.format.kinds import NONE

BINARY = (pa.binary(), pa.large_binary())
_LISTS = (pa.ListType, pa.LargeListType)


def read_cells(
    file: pq.ParquetFile, image: str
) -> tuple[dict[str, Any], list[str | None], set[str]]:
    """Returns the columns of a file, the names of its images, and what columns are not read.

    Args:
        file: an open file.
        image: the column of images; of it, only `path` is read.
    """
    kinds = {field.name: field.type for field in file.schema_arrow if field.name != image}
    inner = {n: kind.value_type if isinstance(kind, _LISTS) else kind for n, kind in kinds.items()}
    unread = {n for n, kind in inner.items() if pa.types.is_nested(kind) or kind in BINARY}
    unread |= kinds.keys() & {"path"}
    told = [n for n in kinds if n not in unread]
    table = file.read(columns=[*told, f"{image}.path"])
    paths: list[str | None] = [None] * file.metadata.num_rows
    if image in table.column_names:
        paths = pc.struct_field(table[image], "path").to_pylist()
    content = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", "{}"))
    features = content.get("info", {}).get("features", {})
    cells = {n: _named(table[n], _class_names(features.get(n))) for n in told}
    return cells, paths, unread


def _class_names(feature: Any) -> list[str]:
    """Returns the names of a ClassLabel, or of a list of them; empty for anything else."""
    while isinstance(feature, list) or "feature" in (feature or {}):
        feature = feature[0] if isinstance(feature, list) else feature["feature"]
    return (feature or {}).get("names", [])


def _named(column: pa.ChunkedArray, names: list[str]) -> pa.ChunkedArray | pa.Array:
    """Returns a column with the names of classes for their numbers, and lists as one text."""
    if isinstance(column.type, _LISTS):
        texts = (
            None if row is None else "|".join(str(names[k] if names else k) for k in row) or NONE
            for row in column.to_pylist()
        )
        return pa.array(texts, pa.string())
    if not names or not pa.types.is_integer(column.type):
        return column
    # -1 stands for no label, as in the test splits of challenges.
    places = pc.if_else(pc.less(column, 0), None, column).combine_chunks()
    return pa.DictionaryArray.from_arrays(places, [name.strip() for name in names])
