"""The kinds of sources, their options, and the source that these choose.

Its images are downloaded, drawn or uploaded first. The paths in it are absolute, because a worker
may have another working directory.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from tqdm.utils import CallbackIOWrapper

from pipelines import errors
from pipelines.sources import kaggle, synthetic
from pipelines.sources.archive import is_zip, open_archive, zip_members
from pipelines.sources.directory import DirectorySource, RemoteDirectorySource
from pipelines.sources.npz import NpzSource
from pipelines.sources.parquet import ParquetSource
from pipelines.sources.rows import RowSource
from pipelines.sources.source import Source
from tfrecord_io.stores import remote
from tfrecord_io.stores.folder import BUILD_DIR, Folder
from tfrecord_io.terminal.address import Address, is_remote
from tfrecord_io.terminal.flags import check, flag
from tfrecord_io.terminal.printing import bar

#: Where the images are decoded: on this machine; on machines that may share its disk; on machines
#: that do not.
Workers = Literal["here", "cluster", "dataflow"]

# Endings of archives that are read, and of tables, which are no archives.
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz")
_TABLES = (".csv", ".tsv", ".parquet", ".xlsx", ".json", ".jsonl")


class _Context(NamedTuple):
    """What a source is given besides its options.

    Attributes:
        workers: where the images are decoded.
        seed: that of synthetic images.
        downloads: local folder for what later builds need, too.
        scratch_dir: local folder for what this build alone needs.
    """

    workers: Workers
    seed: int
    downloads: Path
    scratch_dir: Path


def _open_kaggle(options: SourceOptions, context: _Context) -> Source:
    path = kaggle.download_archive(options.kaggle_dataset, context.downloads)
    facts = {"kind": "kaggle", "dataset": options.kaggle_dataset}
    return open_archive(staged(path, options, context.workers), context.scratch_dir, **facts)


def _open_archive(options: SourceOptions, context: _Context) -> Source:
    if is_remote(address := options.input or ""):
        return open_archive(address, context.scratch_dir)
    path = _require_input(options, is_folder=False)
    if path.suffix.lower() in _TABLES:
        raise errors.UserError(
            f"--input {address} is a table; give it as --labels, and the folder or archive of "
            "its images as --input"
        )
    return open_archive(staged(path, options, context.workers), context.scratch_dir)


def _open_directory(options: SourceOptions, context: _Context) -> Source:
    if is_remote(address := options.input or ""):
        return RemoteDirectorySource(address)
    path = _require_input(options, is_folder=True)
    return DirectorySource(path, follow_links=options.follow_links)


def _open_rows(options: SourceOptions, context: _Context) -> Source:
    return options.rows.packed(context.scratch_dir)


def _open_synthetic(options: SourceOptions, context: _Context) -> Source:
    num = options.num_examples
    folder = context.downloads / f"synthetic-{num}-seed-{context.seed}"
    with bar(desc="drawing", total=num, unit=" images", delay=1.0) as drawn:
        synthetic.write_tree(folder, num, context.seed, drawn.update)
    return DirectorySource(folder, kind="synthetic")


def _require_input(options: SourceOptions, *, is_folder: bool) -> Path:
    path = Path(options.input).absolute()
    if not path.exists():
        raise errors.UserError(f"--input {options.input} does not exist")
    if path.is_dir() != is_folder:
        kind, other = ("file, not a folder", "archive") if is_folder else ("folder", "directory")
        raise errors.UserError(f"--input is a {kind}; use --source {other}")
    return path


class _Kind(NamedTuple):
    """A value of `--source`.

    Attributes:
        open: returns the source that the options choose.
        input: what `--input` must be; None for a source that accepts none.
        only: flags that no other source reads.
        rows: class of a source whose images are rows of files that hold their labels, too.
    """

    open: Callable[[SourceOptions, _Context], Source]
    input: str | None = None
    only: Sequence[str] = ()
    rows: type[RowSource] | None = None


_KINDS = {
    "kaggle": _Kind(_open_kaggle, only=["kaggle_dataset"]),
    "archive": _Kind(_open_archive, "a .zip, .tar or .tar.gz file"),
    "directory": _Kind(_open_directory, "a folder", only=["follow_links"]),
    "npz": _Kind(_open_rows, "a .npz file", rows=NpzSource),
    "parquet": _Kind(_open_rows, "a .parquet file, or a folder of them", rows=ParquetSource),
    "synthetic": _Kind(_open_synthetic, only=["num_examples"]),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Where the images come from.

    Raises:
        ValueError: if a value is wrong, or the source takes no such input.
    """

    source: str = flag(
        "",
        "where the images come from (default: archive, directory, npz or parquet, as --input is; "
        "without --input kaggle, which downloads them and needs a free account; synthetic draws "
        "them and needs no account)",
        choices=tuple(_KINDS),
    )
    input: Address | None = flag(
        None,
        "a folder, or a .zip, .tar or .tar.gz file; a .npz file, or a .parquet file or folder of "
        "them, with images and labels. A zip or folder may be a URL such as s3://bucket/scans.zip",
        metavar="PATH",
    )
    follow_links: bool = flag(
        False, "directory: read links to folders as the folders that they lead to"
    )
    kaggle_dataset: str = flag(
        kaggle.DEFAULT_DATASET, "kaggle: the dataset to download", metavar="OWNER/NAME"
    )
    # One for each of four classes in each of three splits.
    num_examples: int = flag(2000, "synthetic: images to draw", metavar="N", least=12)
    download_dir: Path = flag(
        Path("data/downloads"),
        "where downloads and drawn images are kept for later builds",
        metavar="DIR",
    )
    staging: Address | None = flag(
        None,
        "for workers that cannot read this machine's disk, such as Dataflow's: folder such as "
        "gs://bucket/folder to which a local or downloaded zip is uploaded once",
        metavar="URL",
    )

    @functools.cached_property
    def rows(self) -> RowSource | None:
        """The source, if its images are rows of files that hold their labels, too.

        Raises:
            errors.UserError: if the files are not on a disk of this machine.
        """
        if not (kind := _KINDS[self.source].rows):
            return None
        address = self.input or ""
        if is_remote(address):
            raise errors.UserError(
                f"--source {self.source} reads local files; copy {address} to a disk of this "
                "machine"
            )
        if not Path(address).exists():
            raise errors.UserError(f"--input {address} does not exist")
        if self.source == "npz" and Path(address).is_dir():
            raise errors.UserError(f"--input {address} is a folder; --source npz needs a .npz file")
        return kind(Path(address).absolute())

    def __post_init__(self) -> None:
        if not self.source:
            object.__setattr__(self, "source", _source_of(self.input))  # the dataclass is frozen
        check(self)
        needed = _KINDS[self.source].input
        if needed and not self.input:
            raise ValueError(f"--source {self.source} needs --input, {needed}")
        if self.input is not None and not self.input.strip():
            raise ValueError("--input is empty; expected a folder, an archive or a URL")
        if needed is None and self.input:
            raise ValueError(
                f"--source {self.source} takes no --input; use --source "
                + ("directory" if Path(self.input).is_dir() else "archive")
                + " to build your own images"
            )
        for source, kind in _KINDS.items():
            for name in kind.only if source != self.source else ():
                if getattr(self, name) != getattr(SourceOptions, name):
                    raise ValueError(f"--{name} is for --source {source}; received {self.source}")
        slug = r"[A-Za-z0-9][A-Za-z0-9_-]*"
        if not re.fullmatch(f"{slug}/{slug}", self.kaggle_dataset):
            raise ValueError(
                "--kaggle_dataset must be OWNER/NAME, as in the dataset's address, "
                f"https://www.kaggle.com/datasets/OWNER/NAME; received {self.kaggle_dataset!r}"
            )
        if self.staging and not is_remote(self.staging):
            raise ValueError(
                f"--staging must be a URL such as gs://bucket/folder, received {self.staging!r}"
            )


def _source_of(address: str | None) -> str:
    """Returns the source that reads an input."""
    if not address:
        return "kaggle"
    if address.lower().endswith(".npz"):
        return "npz"
    if is_remote(address):
        ending = Path(urllib.parse.urlsplit(address).path).suffix.lower()
        # Tars and tables on a store are refused as what they are, and not as empty folders.
        kinds = dict.fromkeys(_ARCHIVES, "archive") | {".parquet": "parquet"}
        return kinds.get(ending, "directory")
    path = Path(address)
    if (path.is_dir() or path.suffix.lower() == ".parquet") and ParquetSource(path).has_images():
        return "parquet"
    is_file = path.is_file() or (not path.exists() and path.suffix.lower() in _ARCHIVES)
    return "archive" if is_file else "directory"


def open_source(options: SourceOptions, workers: Workers, seed: int, output: Folder) -> Source:
    """Returns the source that the user chose, ready for random reads.

    `seed` is that of synthetic images. What must be unpacked goes into the output, if that is a
    local folder, when all else is known to be there.

    Raises:
        errors.UserError: if credentials are missing, or an option does not fit the source.
        errors.BuildError: if the data could not be downloaded, drawn or uploaded.
    """
    require_reachable(options, workers)
    downloads = options.download_dir.absolute()
    scratch_dir = downloads if output.remote else Path(output.path(BUILD_DIR)).absolute()
    context = _Context(workers, seed, downloads, scratch_dir)
    return _KINDS[options.source].open(options, context)


def require_reachable(options: SourceOptions, workers: Workers) -> None:
    """Checks that the workers will be able to read the images, before downloading or drawing them.

    The workers of a cluster may share a disk with this machine; if they do not, the first worker
    raises an error. Dataflow's do not.

    Raises:
        errors.UserError: if the workers cannot read the images.
    """
    address = options.input or ""
    if workers != "dataflow" or is_remote(address):
        return
    if options.source not in ("kaggle", "archive"):
        raise errors.UserError(
            f"--source {options.source} reads from a disk of this machine, which Dataflow's "
            "workers cannot read; copy the images to gs:// and give that folder or zip as --input "
            "with --source directory or archive"
        )
    if not options.staging:
        raise errors.UserError(
            "Dataflow's workers cannot read this machine's disk; give --staging "
            "gs://BUCKET/FOLDER, to which the archive is then uploaded once"
        )


def staged(path: Path, options: SourceOptions, workers: Workers) -> Path | Address:
    """Uploads a zip to `--staging` once, if the workers are remote; returns where they read it.

    Raises what `open_source` does.
    """
    if workers == "here" or not options.staging:
        return path
    if not is_zip(path):
        raise errors.UserError(
            f"{path}: only a zip can be read in parts from --staging; pack the images as a .zip"
        )
    size, digest = path.stat().st_size, hashlib.blake2b(digest_size=8)
    with path.open("rb") as file:
        # Name, sizes, offset and CRC of each member identify the zip.
        for member in zip_members(file, str(path)):
            digest.update(repr(member[:5]).encode())
        folder = Folder(options.staging / f"{size}-{digest.hexdigest()}")
        if folder.size(path.name) != size:
            file.seek(0)
            with bar(desc="uploading to --staging", total=size, unit="B", unit_scale=True) as sent:
                remote.write(folder.path(path.name), CallbackIOWrapper(sent.update, file, "read"))
    return folder.path(path.name)
