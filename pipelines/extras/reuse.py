"""Copies pixels from an earlier dataset (`--reuse`), for whoever builds a new version of it.

A file is known by its content, whatever its name: by its length and XXH3-128, which the table of
examples has. So all files are read and hashed as in any build, and its bytes are the same.

The launcher writes an index of the old images into the build folder, which the workers map into
memory that they share.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipelines import errors
from pipelines.options import BuildOptions
from pipelines.planning.plan import read_tasks
from pipelines.report.summary import say
from pipelines.shards.build import Build, ReusableDataset, ReusableImage, ReusableImages
from pipelines.sources.factory import Workers
from pipelines.stores.output_state import open_output
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import DecodedImage
from tfrecord_io.format import examples
from tfrecord_io.format.manifest import Manifest, ManifestError
from tfrecord_io.format.schema import IMAGE
from tfrecord_io.stores.folder import BUILD_DIR, NUM_THREADS, Folder
from tfrecord_io.terminal.address import Address, is_remote
from tfrecord_io.terminal.flags import check, flag
from tfrecord_io.terminal.printing import counted, differences

#: The old images, sorted by the hashes of their files, as Arrow in one piece.
INDEX_FILE = f"{BUILD_DIR}/reuse.arrow"

#: Key of the numbers of copied images, all images, and damaged records in the metadata of the rows
#: of a shard. The sidecar leaves them out, because a build without `--reuse` must write the same
#: bytes.
COUNTS = b"reused"

# Length of a hash in hexadecimal.
_HASH_BYTES = 32

# Facts of an image that do not depend on its name, and side facts of its pixels.
_FACTS = ("width", "height", "mode", "file_format", "quantization", "shape")
_SIDE_FACTS = ("brightness", "white_border", examples.HASH)
_FOUND_BY = ("file_xxh3", "file_bytes", "pixels_xxh3", "shard", "row")
_COLUMNS = (*_FOUND_BY, *_FACTS, *_SIDE_FACTS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The dataset from which images are copied."""

    heading: ClassVar = "output"

    reuse: Address | None = flag(
        None,
        "folder or URL of a finished dataset from which images are copied, as far as their files "
        "have the same content and pixels are made in the same way; the bytes are the same",
        metavar="OLD",
    )

    __post_init__ = check


def load(options: BuildOptions, workers: Workers) -> Reuse | None:
    """Loads the manifest of the dataset that some workers will read; None without `--reuse`.

    Says if the new splits will be other ones than those of the dataset.

    Raises:
        errors.UserError: if it cannot be used, or the workers will not reach the dataset.
    """
    if (address := options.of(Options).reuse) is None:
        return None
    if workers != "here" and address.hides_something:
        raise errors.UserError(
            f"--reuse {address} was given with a signature or a password, which would be "
            "written into the job's description; give a URL without one, or copy the dataset"
        )
    if workers == "dataflow" and not is_remote(address):
        raise errors.UserError(
            f"--reuse {address} is on a disk of this machine, which Dataflow's workers cannot "
            "read; copy the dataset to gs:// and give that URL"
        )
    folder = open_output(address)
    try:
        old = Reuse(folder=folder, dataset=Manifest.load(folder.root))
    except (ManifestError, errors.UserError) as error:
        raise errors.UserError(f"--reuse: {error}") from None
    seed = old.dataset.audit.get("split_seed")
    if seed is not None and options.splits.split_seed is None:
        say(
            "warning: --split_seed auto chooses by the images of this build, so patients may "
            f"change their split; --split_seed {seed} keeps them where they are in {address}"
        )
    return old


def print_copied(build: Build) -> None:
    """Prints how many images were copied, if some could be."""
    if not isinstance(build.reusable, Reuse):
        return
    tasks = read_tasks(build.output, build.draft.fingerprint)
    schemas = build.output.map(build.read_schema, tasks)
    counts = [json.loads((each.metadata or {}).get(COUNTS, "[0, 0, 0]")) for each in schemas]
    copied, images, damaged = map(sum, zip(*counts, strict=True))
    text = f"{copied:,} of {counted(images, 'image')} copied from {build.reusable.folder.root}"
    if damaged:
        text += f"; {counted(damaged, 'record')} of it damaged, and decoded again"
    print(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reuse(ReusableDataset):
    """The dataset of `--reuse`: its folder and its manifest."""

    folder: Folder
    dataset: Manifest

    def open(self, output: Folder, pixels: Preprocessing) -> OldImages:
        """Opens the dataset in a worker, see `OldImages`."""
        return OldImages(self, output, pixels)

    def fitting(self, draft: Manifest, output: Folder) -> Reuse | None:
        """Writes the index of images to the output; returns None, and says why, if none fits.

        Raises:
            errors.UserError: if the table of examples is missing or damaged.
        """
        if why := self._why_not(draft) or self._write_index(output):
            say(
                "warning: all images are decoded, because nothing can be copied from --reuse "
                f"{self.folder.root}: {'; '.join(why)}"
            )
        return None if why else self

    def _why_not(self, draft: Manifest) -> list[str]:
        """Returns the settings that change the pixels of a file between the two datasets."""
        decoder, versions = self.dataset.options.get("decoder", {}), draft.options["decoder"]
        # Those for DICOM are present only if some files are DICOM.
        shared = decoder.keys() & versions.keys() or versions.keys()
        old, new = ({name: some.get(name) for name in shared} for some in (decoder, versions))
        return differences({**self.dataset.preprocessing, **old}, {**draft.preprocessing, **new})

    def _write_index(self, output: Folder) -> list[str]:
        """Writes the index; returns why it is empty, if it is."""
        table = self._read_rows().sort_by("file_xxh3").combine_chunks()
        hashes = table["file_xxh3"].cast(pa.binary()).cast(pa.binary(_HASH_BYTES))
        table = table.set_column(0, "file_xxh3", hashes)
        with output.create(INDEX_FILE) as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write(table)
        return [] if table.num_rows else ["it has no image that is a whole file"]

    def _read_rows(self) -> pa.Table:
        """Returns the columns of the index, for the images that are whole files."""
        try:
            if examples.digests(self.folder.root) is None:
                raise ManifestError(
                    f"{examples.CROISSANT_FILE}, which has the SHA-256 of {examples.FILE_NAME}, is "
                    "missing; copy the dataset again"
                )
            table = examples.read(self.folder.root)
            examples.require(table)
            table = table.select(examples.SCHEMA.names)
            if not table.schema.equals(examples.SCHEMA):
                raise ManifestError(
                    f"{examples.FILE_NAME} has columns of other types than a build writes"
                )
        except ManifestError as error:
            raise errors.UserError(
                f"--reuse {self.folder.root}: {error}; or leave --reuse out"
            ) from None
        names = pa.array([shard.name for shard in self.dataset.shards], pa.string())
        # A frame of a file with several has no hash of its file.
        has_hash = pc.equal(pc.binary_length(table["file_xxh3"]), _HASH_BYTES)
        is_whole = pc.and_(examples.are_originals(table), has_hash)
        is_there = pc.and_(pc.is_in(table["shard"], names), pc.greater_equal(table["row"], 0))
        table = table.filter(pc.and_(is_whole, is_there)).select(_COLUMNS)
        if empty := [name for name in _COLUMNS if table[name].null_count]:
            raise errors.UserError(
                f"--reuse {self.folder.root}: {examples.FILE_NAME} has rows without a value for "
                f"{', '.join(empty)}; build that dataset again, or leave --reuse out"
            )
        return table


class OldImages(ReusableImages):
    """Finds images of an old dataset by the content of their files; for one worker.

    Attributes:
        damaged: places in the index of the records that were found damaged.

    Raises:
        errors.BuildError: if this worker cannot read the old dataset.
    """

    def __init__(self, reuse: Reuse, output: Folder, preprocessing: Preprocessing) -> None:
        self._folder, self._layout = reuse.folder, reuse.dataset.layout
        self._preprocessing = preprocessing
        if not reuse.folder.exists(examples.FILE_NAME):
            raise errors.BuildError(
                f"a worker cannot read --reuse {reuse.folder.root}; every worker must reach it"
            )
        index = output.read(INDEX_FILE) if output.remote else pa.memory_map(output.path(INDEX_FILE))
        rows = pa.ipc.open_file(index).get_batch(0)
        self._columns = dict(zip(_COLUMNS, rows.columns, strict=True))
        _, content = self._columns["file_xxh3"].buffers()
        self._hashes = np.frombuffer(content, f"S{_HASH_BYTES}", rows.num_rows)
        self.damaged = set[int]()

    @property
    def num_parallel_reads(self) -> int:
        """Number of threads that should call `find`, more than one for a store."""
        return NUM_THREADS if self._folder.remote else 1

    def find(self, data: bytes, frame: int | None) -> ReusableImage | None:
        """Returns the image of a file's bytes, or None if it must be decoded."""
        wanted = xxhash.xxh3_128_hexdigest(data).encode()
        place = int(np.searchsorted(self._hashes, wanted))
        if place == len(self._hashes) or self._hashes[place] != wanted:
            return None
        row = {name: column[place].as_py() for name, column in self._columns.items()}
        row[examples.HASH] = np.frombuffer(row[examples.HASH], np.uint8)
        is_dicom = row["file_format"] == "DICOM"
        # A file can be a DICOM file and a picture, and its name decides as what it is decoded. The
        # table does not tell exactly where a picture whose pixels are not square lies in padding.
        is_other = is_dicom != (frame is not None)
        is_inexact = is_dicom and self._preprocessing.fit == "pad"
        if is_other or is_inexact or row["file_bytes"] != len(data):
            return None
        pixels = self._read_pixels(row)
        if pixels is None:
            self.damaged.add(place)
            return None
        box = self._preprocessing.box(row["width"], row["height"])
        image = DecodedImage(pixels=pixels, box=box, **{name: row[name] for name in _FACTS})
        return ReusableImage(image, {name: row[name] for name in _SIDE_FACTS})

    def noted(self, rows: pa.Table, num_copied: int) -> pa.Table:
        """Returns the rows of a shard with the counts of `COUNTS`. Forgets the damaged records."""
        num_images = pc.sum(examples.are_originals(rows)).as_py() or 0
        counts = json.dumps([num_copied, num_images, len(self.damaged)])
        self.damaged.clear()
        return rows.replace_schema_metadata({COUNTS: counts})

    def _read_pixels(self, row: Mapping[str, Any]) -> bytes | None:
        """Returns the pixels of a record, or None if it is missing, damaged or another one."""
        stride = self._layout.stride
        try:
            record = self._folder.read_part(row["shard"], row["row"] * stride, stride)
        except OSError:
            return None
        if len(record) < stride:
            return None
        records = np.frombuffer(record, np.uint8).reshape(1, stride)
        if self._layout.find_damaged(records) is not None:
            return None
        pixels = self._layout.bytes_in(records, IMAGE).tobytes()
        return pixels if xxhash.xxh3_128_hexdigest(pixels) == row["pixels_xxh3"] else None
