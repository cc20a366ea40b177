"""For those who build again: which images and options differ between two datasets.

An image is the same in both if it has the same key, which is made from its path. Augmented copies
are not compared: they follow from their images and the options.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.format import examples
from tfrecord_io.format.manifest import (
    DROPPED_FILE_NAME,
    FILE_NAME,
    REJECTS_FILE_NAME,
    Manifest,
    ManifestError,
    sidecar_name,
)
from tfrecord_io.reading.opening import open_split
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.address import Address
from tfrecord_io.terminal.command import Command
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.printing import counted, listed, printable

#: What is compared of an image that is in both datasets, by its column.
_COMPARED = {"label": "label", "split": "split", "patient": "patient", "pixels_xxh3": "pixels"}

_SHOWN = ("path", *_COMPARED)

# What the bytes of a record mean, and what became of the files.
_COMPARED_FACTS = ("image_shape", "dtype", "label_names", "label_kind", "preprocessing", "counts")


def diff(old: str | os.PathLike[str], new: str | os.PathLike[str]) -> dict[str, Any]:
    """Compares the images and options of two finished datasets, in folders or on stores.

    Returns:
        JSON values. `images` lists under `added` and `removed` the images of one dataset alone,
        and under `label`, `split`, `patient` and `pixels` both sides of each image that differs.
        `counts` has their numbers by split and label, `old → new` where these differ; `options`
        has (old, new) of each option that differs, and `files_of_source` of each number of files
        that were rejected or left out. `moved_patients` are the patients of both with images in a
        split of `new` where they had none in `old`. `files` names the shards, sidecars and tables
        that hold something else. `equal` tells that nothing differs; then all shards were read,
        and have the checksums of their manifests.

    Raises:
        ManifestError: if a dataset is unfinished or unusable, or a shard is missing or damaged.
        UserError, StoreError: as `Manifest.load` does.
    """
    manifests = [Manifest.load(directory) for directory in (old, new)]
    # Without a digest of the files, which are compared one by one.
    options = [{**manifest.options, "source_listing": None} for manifest in manifests]
    wholes = [_table(*each) for each in zip((old, new), manifests, strict=True)]
    tables = [_images(*each) for each in zip((old, new), wholes, strict=True)]
    places = pc.index_in(tables[1]["key"], tables[0]["key"].combine_chunks())
    is_new = pc.is_null(places)
    is_left_out = pc.invert(pc.is_in(tables[0]["key"], tables[1]["key"].combine_chunks()))
    images = {
        "added": tables[1].filter(is_new).select(_SHOWN).to_pylist(),
        "removed": tables[0].filter(is_left_out).select(_SHOWN).to_pylist(),
    }
    before, after = tables[0].take(places.drop_null()), tables[1].filter(pc.invert(is_new))
    for column, name in _COMPARED.items():
        is_same = pc.equal(*(pc.fill_null(table[column], "") for table in (before, after)))
        sides = (table.filter(pc.invert(is_same)).to_pylist() for table in (before, after))
        images[name] = [
            {"path": b["path"], "old": _compared(a), "new": _compared(b)}
            for a, b in zip(*sides, strict=True)
        ]
    # The examples, and their copies, are compared one by one.
    changed, counts = _changed(*options), _changed(*map(_left_out, manifests))
    contents = [
        {
            **{shard.name: shard.sha256 for shard in manifest.shards},
            **_other_files(directory, manifest),
            FILE_NAME: [getattr(manifest, name) for name in _COMPARED_FACTS],
        }
        for directory, manifest in zip((old, new), manifests, strict=True)
    ]
    files = [*_changed(*contents)]
    files += [] if wholes[0].equals(wholes[1]) else [examples.FILE_NAME]
    is_equal = not (changed or counts or files or any(images.values()))
    for directory, manifest in zip((old, new), manifests, strict=True):
        if names := [name for name, split in manifest.splits.items() if split.num_examples]:
            open_split(directory, names, "sha256" if is_equal else "size")
    splits = [
        set(zip(*(table[name].to_pylist() for name in ("patient", "split")), strict=True))
        for table in tables
    ]
    old_patients = {patient for patient, _ in splits[0]} - {None}
    return {
        "old": Address(old),
        "new": Address(new),
        "equal": is_equal,
        "options": changed,
        "files_of_source": counts,
        "files": files,
        "counts": {name: _counts(rows) for name, rows in images.items()},
        "moved_patients": sorted({p for p, _ in splits[1] - splits[0] if p in old_patients}),
        "images": images,
    }


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns both sides of each entry that differs."""
    names = sorted(old.keys() | new.keys())
    return {n: [old.get(n), new.get(n)] for n in names if old.get(n) != new.get(n)}


def _left_out(manifest: Manifest) -> dict[str, int]:
    """Returns the numbers of files that became no examples, by what became of them."""
    kept = ("examples ", "augmented ")
    return {name: num for name, num in manifest.ledger if not name.startswith(kept)}


def _other_files(directory: str | os.PathLike[str], manifest: Manifest) -> dict[str, bytes]:
    """Returns the tables and sidecars by name, without the name of their build.

    A file that does not exist is empty.
    """
    folder, build = Folder(directory), manifest.fingerprint.encode()
    sidecars = [sidecar_name(shard.name) for shard in manifest.shards]
    names = [REJECTS_FILE_NAME, DROPPED_FILE_NAME, *sidecars]

    def read(name: str) -> bytes:
        try:
            return folder.read(name).replace(build, b"")
        except FileNotFoundError:
            return b""

    return dict(zip(names, folder.map(read, names), strict=True))


def _table(directory: str | os.PathLike[str], manifest: Manifest) -> pa.Table:
    table = examples.read(directory)
    if table.num_rows != manifest.num_examples:
        raise ManifestError(
            f"{examples.FILE_NAME} of {Address(directory)} has {table.num_rows:,} rows, but the "
            f"manifest counts {manifest.num_examples:,} examples; copy the dataset again"
        )
    return table


def _images(directory: str | os.PathLike[str], table: pa.Table) -> pa.Table:
    examples.require(table)
    table, names = table.filter(examples.are_originals(table)), ["key", *_SHOWN]
    try:
        return table.select(names).cast(pa.schema([(name, pa.string()) for name in names]))
    except pa.ArrowException as error:
        raise ManifestError(f"{examples.FILE_NAME} of {Address(directory)}: {error}") from None


def _compared(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _COMPARED}


def _counts(images: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Returns the number of images by split and label."""
    counts: dict[str, Counter[str]] = {}
    for image in images:
        old, new = image.get("old", image), image.get("new", image)
        split, label = (
            old[name] if old[name] == new[name] else f"{old[name]} → {new[name]}"
            for name in ("split", "label")
        )
        counts.setdefault(split, Counter())[label] += 1
    return {split: dict(sorted(counts[split].items())) for split in sorted(counts)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    two = "two datasets, OLD and NEW: folders or URLs"
    parser.add_argument("directories", nargs="*", type=Address, metavar="OLD NEW", help=two)
    parser.add_argument(
        "--data", nargs="+", type=Address, default=[], metavar="OUT", help="the same"
    )
    parser.add_argument("--json", action="store_true", help="print every image that differs")


def run(args: argparse.Namespace) -> int:
    """Prints what differs; returns 0 if nothing does, else 1."""
    given = [*args.directories, *args.data]
    if len(given) != 2:
        raise UserError(f"expected two datasets, OLD and NEW; received {len(given)}")
    result = diff(*given)
    if args.json:
        print(json.dumps(result, indent=1))
        return 0 if result["equal"] else 1
    for name, images in result["images"].items():
        if images:
            what = name if name in ("added", "removed") else f"other {name}"
            paths = listed([image["path"] for image in images], 3)
            print(f"{what}: {counted(len(images), 'image')} ({printable(paths)})")
            for split, labels in result["counts"][name].items():
                text = ", ".join(f"{label} {count:,}" for label, count in labels.items())
                print(f"  {printable(f'{split}: {text}')}")
    if moved := result["moved_patients"]:
        text = f"{counted(len(moved), 'patient')} ({listed(moved, 3)})"
        print(printable(f"moved to another split: {text}"))
    for name, (old, new) in result["options"].items():
        print(printable(f"option {name}: {old!r} in OLD, {new!r} in NEW"))
    for name, (old, new) in result["files_of_source"].items():
        print(printable(f"{name}: {old or 0:,} in OLD, {new or 0:,} in NEW"))
    if result["files"] and not (result["options"] or any(result["images"].values())):
        print(printable(f"other content: {listed(result['files'], 3)}"))
    if "anonymize" in result["options"]:
        print("note: no image is in both, because --anonymize had another secret, or one had none")
    if result["equal"]:
        print(f"{' and '.join(given)} are equal")
    return 0 if result["equal"] else 1


COMMAND = Command(
    name="diff",
    purpose="compare the images and options of two datasets",
    add_arguments=add_arguments,
    run=run,
    codes={Exception: 2},
)
