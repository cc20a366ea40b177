"""Writes small finished datasets: real shards and a manifest, no pipeline and no TensorFlow."""

import hashlib
import itertools
import json
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfrecord_io import Manifest
from tfrecord_io.format.manifest import FILE_NAME, Shard, Split, shard_name
from tfrecord_io.format.schema import (
    FOOTER_LENGTH,
    HEADER_LENGTH,
    RecordLayout,
    image_key,
    mask_crc,
)

#: What the manifest says of a dataset that no build made, and of whose source nothing is known.
_FACTS = {
    "name": "tiny", "preprocessing": {}, "source": {}, "counts": {}, "rejects": {}, "options": {},
    "fingerprint": "0" * 64, "versions": {},
}  # fmt: skip


def bare_manifest(label_names: Sequence[str], **facts: Any) -> Manifest:
    """Returns the manifest of a dataset that no build made, but for what is given."""
    return Manifest(label_names=tuple(label_names), **_FACTS | facts)


#: The pixels, the values of the label, and the key.
Example = tuple[bytes, np.ndarray, str]


def split_of(label_counts: Sequence[int]) -> Split:
    """Returns a split whose shard is never read."""
    shard = Shard(name="x", num_examples=sum(label_counts), num_bytes=1, sha256="")
    return Split(label_counts=tuple(label_counts), shards=(shard,))


def write_dataset(
    directory: str | os.PathLike[str],
    *,
    num_examples: Mapping[str, int] | None = None,
    image_shape: tuple[int, int, int] = (6, 5, 1),
    label_names: Sequence[str] = ("CNV", "DME", "DRUSEN", "NORMAL"),
    num_shards: int = 3,
    seed: int = 0,
    num_left_out: int = 0,
) -> Manifest:
    """Writes shards of random pixels and labels, then the manifest, which it returns.

    `num_left_out` examples are missing from the first shards of each split, one a shard, as
    rejected images leave them. Example i of split s has key `image_key(f"{s}/{i}")`, counted over
    the examples that are there.
    """
    layout = RecordLayout(image_shape=image_shape, num_classes=len(label_names))
    generator = np.random.default_rng(seed)
    one_hot = np.eye(len(label_names), dtype=np.float32)

    def example(key: str) -> Example:
        label = one_hot[generator.integers(len(label_names))]
        return generator.integers(256, size=image_shape, dtype=np.uint8).tobytes(), label, key

    examples = {}
    for split, total in (num_examples or {"train": 23, "val": 7}).items():
        keys = (image_key(f"{split}/{place}") for place in itertools.count())
        ends = [total * index // num_shards for index in range(num_shards + 1)]
        counts = [end - start for start, end in itertools.pairwise(ends)]
        examples[split] = [
            [example(next(keys)) for _ in range(count - (index < num_left_out))]
            for index, count in enumerate(counts)
        ]
    return write_examples(Path(directory), layout, label_names, examples)


def write_examples(
    directory: Path,
    layout: RecordLayout,
    label_names: Sequence[str],
    examples: Mapping[str, Sequence[Sequence[Example]]],
    **facts: Any,
) -> Manifest:
    """Writes the examples of each split as shards, then the manifest with further facts."""
    directory.mkdir(parents=True, exist_ok=True)
    splits = {}
    for split, shards in examples.items():
        written = []
        for shard_index, shard in enumerate(shards):
            content = b"".join(layout.encode_record(*example) for example in shard)
            name = shard_name(split, shard_index, len(shards))
            (directory / name).write_bytes(content)
            sizes = {"num_examples": len(shard), "num_bytes": len(content)}
            written.append(Shard(name=name, sha256=hashlib.sha256(content).hexdigest(), **sizes))
        labels = np.array([label for shard in shards for _, label, _ in shard])
        counts = layout.label_kind.count(labels.reshape(-1, len(label_names)))
        splits[split] = Split(label_counts=counts, shards=tuple(written))
    facts |= {"image_shape": layout.image_shape}
    manifest = bare_manifest(label_names, splits=splits, label_kind=layout.label_kind, **facts)
    (directory / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def change_first_label(directory: Path, label: Sequence[float]) -> None:
    """Gives the first example of train other values of its label, and the checksum of these."""
    layout = Manifest.load(directory).layout
    shard = next(path for path in sorted(directory.glob("train-*.tfrecord")) if path.stat().st_size)
    content = bytearray(shard.read_bytes())
    struct.pack_into(f"<{len(label)}f", content, layout.features["label"].offset, *label)
    end = layout.stride - FOOTER_LENGTH
    crc = google_crc32c.value(bytes(content[HEADER_LENGTH:end]))
    struct.pack_into("<I", content, end, mask_crc(crc))
    shard.write_bytes(content)


def cut_shards(path: Path) -> None:
    """Cuts off the shards beside a file of a dataset, in their first record."""
    for shard in path.parent.glob("*.tfrecord"):
        shard.write_bytes(shard.read_bytes()[:100])


def change_json(path: Path, **values: object) -> None:
    """Gives a JSON file some other values."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_column(path: Path, name: str, change: Callable[[list[Any]], list[Any]]) -> pa.Table:
    """Changes the values of a column of a Parquet file; returns the table as it was."""
    table = pq.read_table(path)
    column = pa.array(change(table[name].to_pylist()), table[name].type)
    place = table.schema.get_field_index(name)
    write_table(path, table.set_column(place, name, column))
    return table


def write_table(path: Path, table: pa.Table) -> None:
    """Writes another table of examples, and its SHA-256 if the dataset has one."""
    pq.write_table(table, path)
    manifest = path.with_name("manifest.json")
    if manifest.exists() and "tables" in json.loads(manifest.read_text()):
        change_json(manifest, tables={path.name: hashlib.sha256(path.read_bytes()).hexdigest()})


def parsed_by_tensorflow(files: Iterable[Path], num_classes: int) -> list[dict[str, Any]]:
    """Returns the features of all examples of TFRecord files, read with TensorFlow alone."""
    import tensorflow as tf

    spec = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([num_classes], tf.float32),
        "key": tf.io.FixedLenFeature([], tf.string),
    }
    records = tf.data.TFRecordDataset(sorted(map(str, files)))
    return list(records.map(lambda one: tf.io.parse_single_example(one, spec)).as_numpy_iterator())


def stored(
    directory: str | os.PathLike[str], split: str = "train"
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Returns images, labels and keys, read by the manifest's numbers alone (docs/format.md)."""
    directory = Path(directory)
    manifest = json.loads((directory / FILE_NAME).read_text())
    stride, slots = manifest["record"]["stride"], manifest["record"]["features"]
    shards = [directory / shard["name"] for shard in manifest["splits"][split]["shards"]]
    records = np.concatenate([np.fromfile(shard, np.uint8) for shard in shards]).reshape(-1, stride)
    images, labels, keys = (
        records[:, slots[name]["offset"] :][:, : slots[name]["length"]].copy()
        for name in ("image", "label", "key")
    )
    return (
        images.reshape(-1, *manifest["image"]["shape"]),
        labels.view("<f4"),
        [bytes(key).decode() for key in keys],
    )


def pixels_of(directory: Path) -> dict[str, np.ndarray]:
    """Returns the pixels of every example of all splits by its key."""
    found = (stored(directory, split) for split in Manifest.load(directory).splits)
    return {
        key: image for images, _, keys in found for image, key in zip(images, keys, strict=True)
    }


def assert_same(found: Iterable[Iterable[Any]], wanted: Iterable[Iterable[Any]]) -> None:
    """Compares batches: their number, and the types, shapes and values of their arrays."""
    for ours, theirs in zip(found, wanted, strict=True):
        for array, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(np.asarray(array), np.asarray(other), strict=True)
