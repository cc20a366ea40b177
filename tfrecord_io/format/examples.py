"""The examples table, which has a row for each example: its columns, how it is read and joined.

A column is added to `SCHEMA`, and nowhere else: an example's facts of that name are written, read
and described.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfrecord_io.format.groups import COPY_OF, SOURCES, Groups
from tfrecord_io.format.manifest import Manifest, ManifestError
from tfrecord_io.stores.folder import Folder

#: The table; the manifest has its SHA-256.
FILE_NAME = "examples.parquet"

#: Length of a perceptual hash in bytes, see `side_facts`.
HASH_LENGTH = 32

#: Columns of every table. The hashes are XXH3-128: they show whether two files or two pictures are
#: the same, but do not protect against an adversary. A frame of a file with several has no hash of
#: the file, because the file need not be read as a whole.
SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("shard", pa.string()),
        ("row", pa.int32()),
        ("key", pa.string()),
        ("label", pa.string()),
        ("patient", pa.string()),
        ("path", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("mode", pa.string()),
        ("file_format", pa.string()),
        ("file_bytes", pa.int64()),
        ("quantization", pa.int32()),
        ("file_xxh3", pa.string()),
        ("pixels_xxh3", pa.string()),
        ("brightness", pa.float32()),
        ("white_border", pa.float32()),
        ("perceptual_hash", pa.binary(HASH_LENGTH)),
        # Width to height, see `preprocess.DecodedImage`.
        ("shape", pa.float32()),
        # 0 is the image itself. An augmented copy has the file facts of its original.
        ("variant", pa.int32()),
    ]
)

#: Columns that a table of labels may add, and whose meaning is known. Its other columns follow.
SITE = "site"
KNOWN = (SITE, "study", "series", COPY_OF)

#: The last column: the name of the image's group, which is known when all images are.
GROUP = pa.field("group", pa.string())

#: Names that a table of labels cannot give to its columns.
OWN = (*SCHEMA.names, GROUP.name)

#: The hash that near duplicates almost share, see `twins`.
HASH = "perceptual_hash"

#: What identifies an image, and the images that belong together; texts, or null if unknown.
IDENTITY = ("key", "pixels_xxh3", GROUP.name, "patient", SITE)

#: A run's table with the `IDENTITY` of the images that its network has seen, and the entry of its
#: metadata with facts of their dataset: JSON, as is `patients` in it, how these got their names:
#: the pattern, the code of the secret of `Manifest.has_codes`, and whether a table named them.
SEEN_FILE_NAME, SEEN_ORIGIN = "seen.parquet", b"origin"


def table_of(
    examples: Sequence[Mapping[str, Any]],
    facts: Mapping[str, np.ndarray],
    others: Mapping[str, pa.Array],
) -> pa.Table:
    """Returns the rows of the table for the examples of a shard, without their groups.

    Args:
        examples: what is known of each, by the names of `SCHEMA`; other names are left out.
        facts: the columns that `side_facts` returns.
        others: further columns, such as those of a table of labels; one of `OWN` is left out.
    """
    columns: dict[str, Any] = {
        name: [example.get(name) for example in examples] for name in SCHEMA.names
    }
    columns |= {**facts, HASH: [bits.tobytes() for bits in facts[HASH]]}
    others = {name: column for name, column in others.items() if name not in OWN}
    fields = [*SCHEMA, *(pa.field(name, column.type) for name, column in others.items())]
    return pa.Table.from_pydict(columns | others, pa.schema(fields))


def read_examples(directory: str | os.PathLike[str], split: str | None = None) -> pa.Table:
    """Returns the table of a split's examples, or of all, a row each, in the stored order.

    `read_examples(OUT).to_pandas()` is a DataFrame. The columns are in docs/format.md.

    Raises:
        ManifestError: if the dataset is unfinished, its table is missing or damaged, or has another
            SHA-256 than the manifest says, or it has no such split.
        UserError, StoreError: as `Manifest.load` does.
    """
    folder, manifest = Folder(directory), Manifest.load(directory)
    if split is not None:
        manifest.split(split)
    try:
        content = folder.read(FILE_NAME)
    except FileNotFoundError:
        raise ManifestError(f"{FILE_NAME} is missing; copy the dataset again") from None
    digest = hashlib.sha256(content).hexdigest()
    if (wanted := manifest.tables.get(FILE_NAME, digest)) != digest:
        raise ManifestError(
            f"{FILE_NAME} was changed or is damaged: it has SHA-256 {digest}, but the manifest "
            f"says {wanted}; copy the dataset again, or build it again"
        )
    try:
        # A thread of Arrow that still holds the content when Python ends would abort the process,
        # see apache/arrow#34314.
        table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise ManifestError(f"{FILE_NAME} is damaged ({error}); copy the dataset again") from None
    return table if split is None else table.filter(pc.equal(table["split"], split))


def require(table: pa.Table, columns: Collection[str] = SCHEMA.names) -> None:
    """Raises ManifestError if the table lacks one of some columns."""
    if missing := {*columns} - {*table.column_names}:
        raise ManifestError(
            f"{FILE_NAME} has no column {', '.join(sorted(missing))}; build the dataset again"
        )


def audited(table: pa.Table) -> pa.Table:
    """Returns the columns of `SCHEMA` and `KNOWN` that a table has, without augmented copies."""
    require(table)
    table = table.select([name for name in (*SCHEMA.names, *KNOWN) if name in table.column_names])
    # An augmented copy resembles its original on purpose, so it is not audited.
    return table.filter(pc.equal(table["variant"], 0))


def in_stored_order(table: pa.Table, dataset: Manifest) -> pa.Table:
    """Returns the table with its rows in the order of the records, split after split.

    Raises:
        ManifestError: if it does not have one row for each record of the shards.
    """
    require(table, ("shard", "row"))
    names = pa.array([shard.name for shard in dataset.shards], pa.string())
    starts = np.cumsum([0, *(shard.num_examples for shard in dataset.shards)])
    shards = pc.index_in(table["shard"], names).fill_null(len(names))
    places = starts[shards] + table["row"].to_numpy()
    if not np.array_equal(np.sort(places), np.arange(dataset.num_examples)):
        raise ManifestError(
            f"{FILE_NAME} does not have one row for each of the {dataset.num_examples:,} examples; "
            "copy the dataset again"
        )
    return table.take(np.argsort(places))


def groups_in(table: pa.Table) -> Groups:
    """Returns the groups of a table's images; raises ManifestError if it has none."""
    if GROUP.name in table.column_names and pa.types.is_string(table[GROUP.name].type):
        names = table[GROUP.name].combine_chunks().cast(pa.large_string())
        are_ours = pc.match_substring_regex(names, f"^({'|'.join(SOURCES)}):")
        if pc.all(are_ours, skip_nulls=False).as_py():
            return Groups(names=names)
    raise ManifestError(f"{FILE_NAME} has no groups of images: build the dataset again")


def encode(column: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """Numbers the different values of a column, in the order of their first rows.

    Returns:
        int64 [num_rows], the number of each row's value, or -1 where there is none; and the values.
    """
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy().astype(np.int64), encoded.dictionary


def recounted(dataset: Manifest, examples: pa.Table) -> Manifest:
    """Returns a dataset whose counts of the labels are those of `examples`, of `audited`."""
    splits = {}
    for name, split in dataset.splits.items():
        texts = examples["label"].filter(pc.equal(examples["split"], name)).to_pylist()
        counts = dataset.label_kind.counts(texts, dataset.label_names)
        splits[name] = dataclasses.replace(split, label_counts=counts)
    return dataclasses.replace(dataset, splits=splits)
