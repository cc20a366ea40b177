"""Writes shards: decodes the images of a task one at a time."""

from __future__ import annotations

import contextlib
import functools
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pipelines import errors
from pipelines.listing.refs import OTHERS, SITE, ImageRef, RejectedFile, iterate_refs
from pipelines.planning import plan
from pipelines.shards.build import Build, Create, Work, WriteTask, rows_name
from pipelines.shards.sidecar import Sidecar, read_sidecar
from pipelines.sources.reader import read_in_order
from pipelines.sources.source import Reader
from pipelines.stores import output_state
from pipelines.stores.output import WriteBehind
from tfrecord_io import augment, groups, schema, shard_writer
from tfrecord_io.auditing.side_facts import HASH_LENGTH
from tfrecord_io.decoding import preprocess
from tfrecord_io.decoding.pictures import cut_picture
from tfrecord_io.rejects import Reject

if TYPE_CHECKING:
    from pydicom import Dataset

    _Data = bytes | io.BytesIO | Dataset

#: Columns of examples.parquet, which has one row per example. The hashes are XXH3-128: they show
#: whether two files or two pictures are the same, but do not protect against an adversary. A frame
#: of a file with several has no hash of the file, because the file need not be read as a whole.
#: The site and the other columns of a table of labels follow these, and last the image's group,
#: which is known when all images are.
EXAMPLE_SCHEMA = pa.schema(
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


def write_shard(build: Build, task: plan.ShardTask, reader: Reader, create: Create) -> Sidecar:
    """Decodes the images of one task into one shard, one image at a time.

    The files appear in this order, each only when it is complete: shard, rows of the examples
    table, sidecar. So a sidecar that fits the build proves that the other two files exist.

    Returns:
        the sidecar that was written.

    Raises:
        errors.BuildError: if the source is gone or has changed, or this worker's Pillow or libjpeg
            differs from the launcher's.
    """
    _check_decoder(build)
    with build.storage.open_arrow(output_state.PLAN_FILE) as file:
        planned = plan.read_task_refs(file, task, build.fingerprint)
    with (
        create(task.shard_name) as file,
        shard_writer.ShardWriter(file, build.layout) as shard,
    ):
        examples, rejects = _write_images(build, planned, reader, shard)
    with create(rows_name(task)) as file:
        pq.write_table(_examples_table(task, planned, examples, shard.facts()), file)
    sidecar = Sidecar(
        fingerprint=build.fingerprint,
        shard=task.shard_name,
        num_refs=task.num_refs,
        num_examples=len(examples),
        num_bytes=len(examples) * build.layout.stride,
        sha256=shard.sha256,
        label_counts=build.label_kind.counts(
            [example.ref.label for example in examples], build.label_names
        ),
        rejects=tuple(rejects),
        statistics=shard.statistics(),
    )
    sidecar.write(create)
    return sidecar


@contextlib.contextmanager
def open_image_writer(build: Build) -> Iterator[WriteTask]:
    """Opens the source and yields a function that writes the shards of a build."""
    with build.source.open() as reader:
        yield lambda task, create: write_shard(build, task, reader, create)


class TaskWriter:
    """Writes one task after another, for use in a `with` block.

    It keeps its input open, and makes a shard while the files of earlier tasks reach the disk.
    """

    def __init__(self, build: Work) -> None:
        """Makes a writer that has opened nothing."""
        self._build = build
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._write = self._open.enter_context(self._build.open_writer(self._build))
        except Exception:
            # The message may name the input, which must not reach a worker's log.
            if self._build.anonymous:
                raise errors.BuildError(
                    "a worker cannot open the input; every worker must be able to read it"
                ) from None
            raise
        self._files = self._open.enter_context(contextlib.closing(WriteBehind(self._build.storage)))
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def write(self, task: plan.ShardTask) -> None:
        """Writes a shard unless it is already written.

        Its files may still be unfinished on return; call `wait` before relying on them.

        Raises:
            errors.BuildError: as `write_shard` does, or if the output cannot be written.
        """
        # An engine may retry a task that is already done.
        if read_sidecar(self._build, task) is None:
            with self._build.clear_errors():
                self._write(task, self._files.create)

    def wait(self) -> None:
        """Waits until the files of all tasks are finished.

        Raises:
            errors.BuildError: if one of them could not be finished.
        """
        with self._build.clear_errors():
            self._files.wait()


def _write_images(
    build: Build,
    planned: pa.RecordBatch,
    reader: Reader,
    shard: shard_writer.ShardWriter,
) -> tuple[list[_Example], list[RejectedFile]]:
    """Decodes the planned images into a shard; returns the examples and the rejected images."""
    image_shape = build.layout.image_shape
    refs, variants = list(iterate_refs(planned)), planned["variant"].to_pylist()
    paths = [ref.image_path for ref in refs]
    if build.num_variants:
        paths = [augment.variant_path(path, n) for path, n in zip(paths, variants, strict=True)]
    keys = map(schema.image_key, paths)
    texts = list({ref.label for ref in refs})
    labels = dict(zip(texts, build.label_kind.vectors(texts, build.label_names), strict=True))
    parts = ((ref.member, functools.partial(_read_part, reader, ref)) for ref in refs)
    reads = read_in_order(reader, parts)
    rows = zip(refs, reads, variants, keys, strict=True)
    examples: list[_Example] = []
    rejects: list[RejectedFile] = []
    with warnings.catch_warnings():
        # Pillow warns about odd metadata; an image that is unusable is rejected in any case.
        warnings.simplefilter("ignore")
        for place, (ref, read, variant, key) in enumerate(rows):
            try:
                data, (pixels, box, *original) = _decode(build, reader, ref, read)
            except Reject as reject:
                # A file is rejected only once, not again for each of its variants.
                if not variant:
                    detail = reject.detail if ref.hidden is None else ""
                    rejects.append(RejectedFile(ref.image_name, reject.reason, detail))
                continue
            if variant:
                pixels = augment.vary(pixels, image_shape, key, box)
            shard.write(pixels, labels[ref.label], key)
            # Of a file of several images only a part may be at hand.
            file_hash = None if ref.frame else xxhash.xxh3_128_hexdigest(data)
            pixels_hash = xxhash.xxh3_128_hexdigest(pixels)
            examples.append(_Example(place, ref, key, variant, *original, file_hash, pixels_hash))
    return examples, rejects


def _read_part(reader: Reader, ref: ImageRef) -> _Data:
    """Reads a file, or only the wanted frame of it, where that is possible."""
    if not ref.frame:
        return reader.read(ref.member)
    with reader.open(ref.member) as file:
        # Over a network, going from page to page of a TIFF takes longer than reading it.
        if part := cut_picture(file, ref.frame, pages=reader.num_parallel_reads == 1):
            return part
        file.seek(0)
        return file.read()


def _decode(
    build: Build, reader: Reader, ref: ImageRef, read: Callable[[], _Data]
) -> tuple[_Data, preprocess.DecodedImage]:
    """Returns what was read of an image, and the image.

    Raises:
        Reject: if it cannot be decoded, and reads the same a second time.
        errors.BuildError: if it cannot be read.
    """
    attempts: list[tuple[_Data, Reject]] = []
    # A server, a cable or a disk may have garbled the file the first time.
    for read_again in (read, functools.partial(_read_part, reader, ref)):
        data: _Data = b""
        try:
            with errors.clear_read_errors(ref.source_path):
                data = read_again()
                return data, preprocess.decode_image(data, build.preprocessing, ref.frame)
        except Reject as reject:
            attempts.append((data, reject))
        except (OSError, EOFError, IndexError):
            detail = f"the file has no whole picture {ref.frame}"
            attempts.append((data, Reject("undecodable", detail)))
        except errors.ToldError:
            if ref.hidden is None:
                raise
            # The reader's own message, which names the file, must not reach a worker's log.
            raise errors.BuildError(
                f"image {ref.source_path} could not be read, or has "
                "changed since the build began; the private table beside the secret gives its "
                "name. Run the same command again to resume, or with --overwrite if the file has "
                "changed"
            ) from None
    (before, why_before), (now, why_now) = attempts
    if str(why_now) == str(why_before) and (not isinstance(now, bytes) or now == before):
        raise why_now
    raise errors.BuildError(
        f"{ref.source_path} has other bytes each time that it is read; check the disk, the "
        "network and the server, then run the same command again to resume"
    )


class _Example(NamedTuple):
    """The facts of one example that are found one by one, named as in `EXAMPLE_SCHEMA`.

    The first two are not columns: the place in the plan's batch, and the image.
    """

    place: int
    ref: ImageRef
    key: str
    variant: int
    width: int
    height: int
    mode: str
    file_format: str
    quantization: int
    shape: float
    file_xxh3: str | None
    pixels_xxh3: str


def _examples_table(
    task: plan.ShardTask,
    planned: pa.RecordBatch,
    examples: Sequence[_Example],
    facts: Mapping[str, np.ndarray],
) -> pa.Table:
    """Returns the shard's rows of the examples table.

    Args:
        task: the shard.
        planned: the rows of the plan.
        examples: the facts of each example.
        facts: columns computed for all examples together, see `side_facts.side_facts`.
    """
    columns: dict[str, Any] = {
        name: [getattr(example, name) for example in examples] for name in _Example._fields
    }
    refs, places = columns.pop("ref"), pa.array(columns.pop("place"), pa.int64())
    columns |= facts
    columns |= {
        "split": [task.split] * len(refs),
        "shard": [task.shard_name] * len(refs),
        "row": range(len(refs)),
        "label": [ref.label for ref in refs],
        "patient": [ref.patient for ref in refs],
        "path": [ref.image_name for ref in refs],
        "file_bytes": [ref.size for ref in refs],
        "perceptual_hash": [bits.tobytes() for bits in facts["perceptual_hash"]],
    }
    fields = list(EXAMPLE_SCHEMA)
    if SITE in planned.schema.names:
        columns[SITE] = planned.column(SITE).take(places).cast(pa.string())
        fields.append(pa.field(SITE, pa.string()))
    if OTHERS in planned.schema.names:
        others = planned.column(OTHERS).take(places)
        for field, column in zip(others.type, others.flatten(), strict=True):
            # The launcher has said which are left out.
            if field.name not in columns and field.name != groups.COLUMN:
                columns[field.name] = column
                fields.append(field)
    return pa.Table.from_pydict(columns, pa.schema(fields))


def _check_decoder(build: Build) -> None:
    planned = build.identity["decoder"]
    try:
        here = preprocess.decoder_versions(with_dicom="pydicom" in planned)
    except ModuleNotFoundError as error:
        raise errors.BuildError(f"this worker cannot decode: {error}") from None
    if here != planned:
        raise errors.BuildError(
            f"this worker decodes with {here}, but the launcher planned with {planned}; install "
            "the launcher's versions on the workers, because other versions give other pixels"
        )
