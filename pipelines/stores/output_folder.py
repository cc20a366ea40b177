"""The output folder: its options, its lock, and what it holds before a build."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines import errors
from tfrecord_io.format import examples, manifest
from tfrecord_io.reading.mapped import open_split
from tfrecord_io.stores import file_lock, replace
from tfrecord_io.stores.folder import BUILD_DIR, Folder
from tfrecord_io.terminal.address import Address, is_remote
from tfrecord_io.terminal.flags import check, flag
from tfrecord_io.terminal.printing import differences

#: The references, one record batch per task; and a JSON file with the tasks and the identity.
PLAN_FILE = f"{BUILD_DIR}/plan.arrow"
PLAN_JSON = f"{BUILD_DIR}/plan.json"

#: Holds the reason why the dataset was refused.
FAILURE_FILE = f"{BUILD_DIR}/failure.txt"

_LOCK = f"{BUILD_DIR}/lock"
# The files of a dataset besides its shards and their sidecars.
_FILES = (
    manifest.FILE_NAME,
    manifest.REJECTS_FILE_NAME,
    manifest.DROPPED_FILE_NAME,
    manifest.REPORT_FILE_NAME,
    examples.FILE_NAME,
    "features.json",
    "dataset_info.json",
)
# What a dataset that waits to replace another may consist of.
_OWN_FILES = re.compile(
    rf"{re.escape(BUILD_DIR)}/.*|[a-z][a-z0-9_]*-\d{{5,}}-of-\d{{5,}}\.(tfrecord|json)|"
    + "|".join(map(re.escape, _FILES))
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where the dataset goes, and what it may lack.

    Raises:
        ValueError: if a value is wrong.
    """

    output: Address = flag("data/tfrecords", "folder or URL of the dataset", metavar="DIR")
    name: str | None = flag(
        None, "name of the dataset (default: made from the source or the input)", metavar="NAME"
    )
    max_reject_fraction: float = flag(
        0.01, "fail if more than this share of the images cannot be used", least=0, most=1
    )
    overwrite: bool = flag(
        False,
        "replace the dataset in the output folder, finished or not, when the new one is finished",
    )

    def __post_init__(self) -> None:
        check(self)
        if not self.output.strip("/"):
            raise ValueError(f"--output must be a folder of its own, received {self.output!r}")
        if self.name is not None and not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(
                f"--name must be lower-case letters, digits and underscores, received {self.name!r}"
            )


def open_output(address: Address) -> Folder:
    """Returns the output folder, by its full path: a worker may have another working directory."""
    return Folder(address if is_remote(address) else str(Path(address).resolve()))


@contextlib.contextmanager
def locked(storage: Folder) -> Iterator[None]:
    """Locks the output folder until the block ends, or the process.

    A remote output has no lock; two builds of the same plan write the same bytes there.

    Raises:
        errors.UserError: if another build holds the lock, or the folder cannot be written or
            listed.
    """
    if storage.remote:
        try:
            storage.names()
            finish_replacing(storage)
        except errors.MessageError as error:
            raise errors.UserError(f"cannot use --output {storage.root}: {error}") from None
        yield
        if storage.exists(manifest.FILE_NAME):
            storage.clean_build_dir()
        return
    made = not Path(storage.root).exists()
    doing = f"writing to {storage.root}"
    lock = file_lock.held(Path(storage.path(_LOCK)), doing, folder_mode=0o700)
    with contextlib.ExitStack() as stack:
        try:
            storage.make_build_dir()
            stack.enter_context(lock)
        except OSError as error:
            raise errors.UserError(
                f"cannot write to --output {storage.root}: {error.strerror}"
            ) from None
        try:
            finish_replacing(storage)
            yield
        finally:
            if storage.exists(manifest.FILE_NAME) or storage.names(BUILD_DIR) == ["lock"]:
                storage.clean_build_dir()
            if made:
                with contextlib.suppress(OSError):  # it is not empty
                    Path(storage.root).rmdir()


def place_of(
    storage: Folder, identity: Mapping[str, Any], shards: Collection[str], *, overwrite: bool
) -> Folder | None:
    """Returns the folder in which a build writes, by what the output folder `storage` holds.

    It is `storage` itself; or, to replace what is there, one beside it, see `take_place`; or None
    if the dataset is complete. `identity` is what `fingerprint` takes, and `shards` are the names
    of the shards that the build writes.

    Raises:
        errors.UserError: if the folder holds another dataset or build and `overwrite` is not given,
            a file that the build would write over, or a damaged plan or manifest.
        manifest.ManifestError: if it holds the dataset, but not all of its shards.
    """
    is_complete = not overwrite and _is_complete(storage, identity)
    written = {*_FILES, *shards, *map(manifest.sidecar_name, shards)}
    in_the_way = written.intersection(storage.names()) - _files_of_dataset(storage)
    if not storage.remote:
        in_the_way |= {name for name in written if Path(storage.path(name)).is_dir()}
    if in_the_way and not is_complete:
        raise errors.UserError(
            f"{storage.root} holds {min(in_the_way)}, which is not of a dataset or plan there, and "
            "this build would write it; move it away, or choose another --output"
        )
    if overwrite:
        place = replace.beside(storage)
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            # An earlier build of the same fingerprint resumes.
            if json.loads(place.read(PLAN_JSON))["fingerprint"] == fingerprint(identity):
                return place
        return replace.waiting(storage)
    if not storage.remote:  # without a lock, another build may still be writing there
        replace.drop(storage)
    return None if is_complete else storage


def _is_complete(storage: Folder, identity: Mapping[str, Any]) -> bool:
    """Returns whether the folder holds the dataset; False if it is unfinished, or nothing is there.

    Raises as `place_of` does.
    """
    if is_complete := storage.exists(manifest.FILE_NAME):
        try:
            dataset = manifest.Manifest.load(storage.root)
        except manifest.ManifestError as error:
            raise errors.UserError(f"{error}; --overwrite replaces it") from None
        old, old_fingerprint = dataset.options, dataset.fingerprint
    elif storage.exists(PLAN_JSON):
        try:
            planned = json.loads(storage.read(PLAN_JSON))
            old, old_fingerprint = planned["identity"], planned["fingerprint"]
        except (ValueError, KeyError, TypeError):
            raise errors.UserError(
                f"{storage.path(PLAN_JSON)} is damaged; use --overwrite to start again"
            ) from None
    else:
        return False
    if old_fingerprint != fingerprint(identity):
        changed = differences(old, identity) or ["the format of the files"]
        raise errors.UserError(
            "\n  ".join([f"{storage.root} holds a dataset that differs:", *changed])
            + "\nchoose another --output, or replace it with --overwrite"
        )
    if is_complete:
        open_split(storage.root, list(dataset.splits))
    return is_complete


def _files_of_dataset(storage: Folder) -> set[str]:
    """Returns the names of the files of a dataset, as its manifest or plan lists them.

    Of a damaged manifest or plan the shards are not known.
    """
    shards: list[str] = []
    has_manifest, has_plan = storage.exists(manifest.FILE_NAME), storage.exists(PLAN_JSON)
    if not (has_manifest or has_plan):
        return set()
    if has_manifest:
        with contextlib.suppress(manifest.ManifestError):
            shards += [shard.name for shard in manifest.Manifest.load(storage.root).shards]
    if has_plan:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            shards += [
                manifest.shard_name(split, index, num_shards)
                for _, split, index, num_shards, _ in json.loads(storage.read(PLAN_JSON))["tasks"]
            ]
    of_build = {f"{BUILD_DIR}/{name}" for name in storage.names(BUILD_DIR)} - {_LOCK}
    return {*_FILES, *shards, *map(manifest.sidecar_name, shards), *of_build}


def take_place(storage: Folder) -> None:
    """Replaces the dataset that is there by the one beside it, which is finished.

    Of the files that are there, only those that its manifest or plan lists are removed.
    """
    replace.promise(storage, old=_files_of_dataset(storage))
    replace.complete(storage, _OWN_FILES)


def finish_replacing(storage: Folder) -> None:
    """Completes `take_place`, if a process was killed in the middle of it."""
    replace.complete(storage, _OWN_FILES)


def fingerprint(identity: Mapping[str, Any]) -> str:
    """Returns the digest of everything that decides the bytes of a dataset: JSON values by name."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
