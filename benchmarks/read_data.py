"""The data of `read_speed.py`: the same pixels in the format of each reader.

The data is written once, to a folder that git ignores, and reused by later runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tfrecord_io import Manifest
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import decode_image
from tfrecord_io.format import descriptions
from tfrecord_io.format.examples import FILE_NAME as EXAMPLES_FILE_NAME
from tfrecord_io.format.manifest import FILE_NAME, Shard, Split, shard_name
from tfrecord_io.format.schema import RecordLayout, image_key
from tfrecord_io.reading.mapped import MappedDataset

LABEL_NAMES = ("CNV", "DME", "DRUSEN", "NORMAL")
IMAGE_SHAPE = (224, 224, 1)

# Most original scans have this size; at this JPEG quality they take about 65 kB.
SCAN_WIDTH, SCAN_HEIGHT, SCAN_QUALITY = 512, 496, 75
_NUM_SCANS = 256
#: Fields of the manifest that say nothing of drawn images.
_UNKNOWN = ("preprocessing", "source", "counts", "rejects", "options", "versions")
_SHARD_SIZE = 1024


@dataclasses.dataclass(frozen=True)
class ReadData:
    """Paths of the data.

    Attributes:
        records: a finished dataset.
        work: folder of the data that is made from it.
    """

    records: Path
    work: Path

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset."""
        return Manifest.load(self.records)

    @property
    def num_examples(self) -> int:
        """The number of training examples."""
        return self.manifest.split("train").num_examples

    @property
    def shard_paths(self) -> list[str]:
        """The paths of the training shards."""
        return [str(self.records / shard.name) for shard in self.manifest.split("train").shards]

    @property
    def scans(self) -> Path:
        """A folder with a subfolder of JPEG files per class; one file per example."""
        return self.peer("scans")

    def peer(self, name: str) -> Path:
        """Returns the folder of the same pixels in another format."""
        return self.work / f"{name}-{self.num_examples}"


def speckled(generator: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Draws uint8 [height, width] pixels with about the detail of a scan."""
    coarse = Image.fromarray(generator.integers(256, size=(31, 32), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float32)
    speckle = smooth * generator.gamma(9, 1 / 9, smooth.shape)
    return np.clip(speckle, 0, 255).astype(np.uint8)


def decode_scan(path: str, preprocessing: Preprocessing) -> np.ndarray:
    """Returns the pixels of an image file as the build stores them."""
    pixels = decode_image(Path(path).read_bytes(), preprocessing).pixels
    return np.frombuffer(pixels, np.uint8).reshape(preprocessing.image_shape)


def draw_records(
    directory: Path,
    num_examples: int,
    image_shape: tuple[int, int, int] = IMAGE_SHAPE,
) -> Path:
    """Writes a dataset of drawn images in the project's format; `directory` if it is there.

    Every image is different: one of 64 drawn images, shifted by its own number of pixels.
    """
    layout = RecordLayout(image_shape=image_shape, num_classes=len(LABEL_NAMES))
    labels = np.eye(len(LABEL_NAMES), dtype=np.float32)
    num_shards = -(-num_examples // _SHARD_SIZE)

    def records() -> Iterator[bytes]:
        generator = np.random.default_rng(0)
        drawn = [speckled(generator, *image_shape[:2]) for _ in range(64)]
        for example in range(num_examples):
            image = np.roll(drawn[example % 64], example // 64, axis=(0, 1)).tobytes()
            label = labels[example % len(LABEL_NAMES)]
            yield layout.encode_record(image, label, image_key(str(example)))

    def write(directory: Path) -> None:
        shards, drawn = [], records()
        for index in range(num_shards):
            first = num_examples * index // num_shards
            count = num_examples * (index + 1) // num_shards - first
            content = b"".join(itertools.islice(drawn, count))
            name, digest = shard_name("train", index, num_shards), hashlib.sha256(content)
            (directory / name).write_bytes(content)
            facts = {"num_examples": count, "num_bytes": len(content)}
            shards.append(Shard(name=name, sha256=digest.hexdigest(), **facts))
        # The benchmark does not read the counts of the classes, but their sum must be right.
        label_counts = (num_examples,) + (0,) * (len(LABEL_NAMES) - 1)
        manifest = Manifest(
            name="read_speed",
            image_shape=image_shape,
            label_names=LABEL_NAMES,
            splits={"train": Split(label_counts=label_counts, shards=tuple(shards))},
            fingerprint=hashlib.sha256(directory.name.encode()).hexdigest(),
            **{name: {} for name in _UNKNOWN},
        )
        for name, text in descriptions.for_tfds(manifest).items():
            (directory / name).write_text(text, encoding="utf-8")
        (directory / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
        # The trainer takes patients from this table; here every image is one.
        keys = pa.array(MappedDataset(directory, "train").keys(range(num_examples)), pa.string())
        places = [(shard.name, row) for shard in shards for row in range(shard.num_examples)]
        names, rows = zip(*places, strict=True)
        groups = [f"image:{key}" for key in keys.to_pylist()]
        table = {"split": ["train"] * num_examples, "shard": names, "row": rows, "group": groups}
        pq.write_table(
            pa.table({**table, "key": keys, "path": keys}), directory / EXAMPLES_FILE_NAME
        )

    return make_once(directory, write)


def draw_scans(data: ReadData) -> None:
    """Draws JPEG files of the original size: `_NUM_SCANS` images, linked under many names."""

    def write(directory: Path) -> None:
        generator = np.random.default_rng(1)
        for number in range(data.num_examples):
            folder = directory / LABEL_NAMES[number % len(LABEL_NAMES)]
            path = folder / f"{number // len(LABEL_NAMES):05d}.jpeg"
            if number >= _NUM_SCANS:
                twin = (number % _NUM_SCANS) // len(LABEL_NAMES)
                os.link(folder / f"{twin:05d}.jpeg", path)
                continue
            folder.mkdir(exist_ok=True)
            scan = Image.fromarray(speckled(generator, SCAN_HEIGHT, SCAN_WIDTH))
            scan.save(path, quality=SCAN_QUALITY)

    make_once(data.scans, write)


def write_array_record(data: ReadData) -> None:
    """Writes ArrayRecord files for Grain; a record is the pixels and the label as raw bytes."""
    from array_record.python.array_record_module import ArrayRecordWriter

    def write(directory: Path) -> None:
        # Grain recommends one record per group for random access.
        writers = [
            ArrayRecordWriter(str(directory / f"{index:02d}.array_record"), "group_size:1")
            for index in range(16)
        ]
        for number, (image, label) in enumerate(_examples(data)):
            writers[number % 16].write(image.tobytes() + label.tobytes())
        for writer in writers:
            writer.close()

    make_once(data.peer("array_record"), write)


def write_webdataset(data: ReadData) -> None:
    """Writes tar files of .npy and .cls for WebDataset."""
    import webdataset

    def write(directory: Path) -> None:
        pattern = str(directory / "%05d.tar")
        with webdataset.ShardWriter(pattern, maxcount=_SHARD_SIZE, verbose=0) as writer:
            for number, (image, label) in enumerate(_examples(data)):
                writer.write({"__key__": f"{number:08d}", "npy": image, "cls": int(label.argmax())})

    make_once(data.peer("webdataset"), write)


def write_mosaicml(data: ReadData) -> None:
    """Writes MosaicML's shards, with arrays of a fixed shape and without compression."""
    from streaming import MDSWriter

    def write(directory: Path) -> None:
        shape = ",".join(str(size) for size in data.manifest.image_shape)
        columns = {"image": f"ndarray:uint8:{shape}", "label": "int"}
        with MDSWriter(out=str(directory), columns=columns) as writer:
            for image, label in _examples(data):
                writer.write({"image": image, "label": int(label.argmax())})

    make_once(data.peer("mosaicml"), write)


def flatten(data: ReadData) -> None:
    """Writes the pixels of all images to one file without headers, for the limit."""

    def write(directory: Path) -> None:
        with (directory / "pixels").open("wb") as file:
            for image, _ in _examples(data):
                file.write(image.tobytes())

    make_once(data.peer("flat"), write)


def _examples(data: ReadData) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    dataset = MappedDataset(data.records, "train")
    return (dataset[index] for index in range(len(dataset)))


def make_once(directory: Path, write: Callable[[Path], None]) -> Path:
    """Calls `write` with a temporary folder and renames it when it is complete; once only."""
    if not directory.exists():
        unfinished = directory.with_name(f"{directory.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        write(unfinished)
        unfinished.rename(directory)
    return directory


#: What each reader of `read_speed.py` needs besides the records.
WRITERS: dict[str, Callable[[ReadData], None]] = {
    "limit": flatten,
    "decode": draw_scans,
    "decode_grey": draw_scans,
    "grain": write_array_record,
    "webdataset": write_webdataset,
    "mosaicml": write_mosaicml,
}

#: The folder that a reader reads; the others read the records.
_FOLDERS = {
    "limit": "flat",
    "decode": "scans",
    "decode_grey": "scans",
    "grain": "array_record",
    "webdataset": "webdataset",
    "mosaicml": "mosaicml",
}


def warm(data: ReadData, reader: str) -> None:
    """Reads the files of a reader into the page cache, which may have dropped them meanwhile."""
    folder = data.peer(_FOLDERS[reader]) if reader in _FOLDERS else data.records
    for path in filter(Path.is_file, folder.rglob("*")):
        path.read_bytes()
