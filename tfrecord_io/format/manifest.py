"""The manifest, which describes a finished dataset. If it exists, the dataset is complete."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.format import schema
from tfrecord_io.format.kinds import CLASSES, LabelKind, kind_in
from tfrecord_io.format.statistics import PixelStatistics
from tfrecord_io.stores import replace
from tfrecord_io.stores.folder import BUILD_DIR, Folder
from tfrecord_io.terminal.errors import MessageError
from tfrecord_io.terminal.flags import command
from tfrecord_io.terminal.printing import listed

#: The newest version of the format. A dataset has the oldest version that can describe it.
FORMAT_VERSION = 2

#: Names of files of a dataset. The tables list rejects, and what a policy left out; the report is
#: the dataset's card.
FILE_NAME = "manifest.json"
REJECTS_FILE_NAME = "rejects.csv"
DROPPED_FILE_NAME = "dropped.csv"
REPORT_FILE_NAME = "report.html"

#: The split whose pixels the manifest's statistics describe, because inputs are normalized by the
#: statistics of the training data.
STATISTICS_SPLIT = "train"

# Names of a dataset, its splits and its shards. None can lead out of a folder, because they become
# parts of paths, and a manifest may be a stranger's.
_SAFE_NAME = re.compile(r"\w[\w.-]{0,199}")

# The type of each value of a manifest: of all elements of a list, and of the entries of a mapping,
# where "*" stands for any name; a list of one type has any length.
_PARTS: Mapping[str, Any] = {
    "name": str,
    "image": {"shape": [int] * 3, "dtype": str},
    "label_names": [str],
    "splits": {
        "*": {
            "num_examples": int,
            "label_counts": {"*": int},
            "shards": [{"name": str, "num_examples": int, "num_bytes": int, "sha256": str}],
        }
    },
    "preprocessing": {},
    "source": {},
    "counts": {"*": int, "dropped": {"*": int}, "ignored": {"*": int}},
    "rejects": {"*": int},
    "options": {},
    "fingerprint": str,
    "versions": {"*": str},
}
_SUMS = {"split": str, "num_pixels": int, "sums": [int], "sums_of_squares": [int]}
_AS_THEY_ARE = (
    "preprocessing", "source", "counts", "rejects", "audit", "options", "fingerprint", "versions",
)  # fmt: skip


class ManifestError(MessageError, ValueError):
    """A dataset that cannot be used: unfinished, damaged, inconsistent or of another version."""

    exit_code = 2


def shard_name(split: str, shard_index: int, num_shards: int) -> str:
    """Returns a shard's file name, such as `train-00000-of-00064.tfrecord`."""
    return f"{split}-{shard_index:05d}-of-{num_shards:05d}.tfrecord"


def sidecar_name(shard: str) -> str:
    """Returns the name of the JSON file beside a shard that describes it."""
    return shard.removesuffix(".tfrecord") + ".json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """One shard file: its name in the dataset's folder, records, exact size and SHA-256 in hex."""

    name: str
    num_examples: int
    num_bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """One split of a dataset: how many examples have each label, and its shards, in order."""

    label_counts: tuple[int, ...]
    shards: tuple[Shard, ...]

    @property
    def num_examples(self) -> int:
        """Number of examples in all shards."""
        return sum(shard.num_examples for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Size of all shards in bytes."""
        return sum(shard.num_bytes for shard in self.shards)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The facts of a dataset that a reader, a trainer or a reviewer needs.

    Attributes:
        image_shape: (height, width, channels) of every image.
        label_names: class names in the order of their indices.
        preprocessing: how a file became pixels, see `Preprocessing`; `predict` repeats it. It is
            empty if no build made the dataset.
        source: where the images came from.
        counts: number of files in the source, and their number by what became of them.
        rejects: number of rejected images, by reason.
        options: everything that decides the bytes of the dataset.
        fingerprint: hexadecimal digest of the options and the format.
        versions: those of the software that wrote the dataset.
        tables: SHA-256 of `examples.parquet` in hex, by its name; older datasets have none.
        audit: findings about the data; empty without an audit.
        statistics: sums over the pixels of the train split. None if that split is empty, or if
            whoever wrote the dataset did not count them.
    """

    name: str
    image_shape: tuple[int, int, int]
    label_names: tuple[str, ...]
    splits: Mapping[str, Split]
    preprocessing: Mapping[str, Any]
    source: Mapping[str, Any]
    counts: Mapping[str, Any]
    rejects: Mapping[str, int]
    options: Mapping[str, Any]
    fingerprint: str
    versions: Mapping[str, str]
    tables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    audit: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    statistics: PixelStatistics | None = None
    label_kind: LabelKind = CLASSES

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.image_shape))
        sizes = ", ".join(f"{name} {split.num_examples:,}" for name, split in self.splits.items())
        labels = listed(self.label_names)
        return f"<Manifest of {self.name}: {shape}; {labels}; examples: {sizes}>"

    @property
    def num_classes(self) -> int:
        """Number of classes, which is the length of a label."""
        return len(self.label_names)

    @functools.cached_property
    def layout(self) -> schema.RecordLayout:
        """The layout of every record of the dataset."""
        return schema.RecordLayout(
            image_shape=self.image_shape,
            num_classes=self.num_classes,
            label_kind=self.label_kind,
        )

    @property
    def has_codes(self) -> bool:
        """Whether codes stand for the names of files and patients, see `--anonymize`."""
        return bool(self.options.get("anonymize"))

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards of all splits, split after split."""
        return tuple(shard for split in self.splits.values() for shard in split.shards)

    @property
    def num_examples(self) -> int:
        """Number of examples in all splits."""
        return sum(shard.num_examples for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Size of all shards in bytes."""
        return sum(shard.num_bytes for shard in self.shards)

    @property
    def ledger(self) -> list[tuple[str, int]]:
        """What became of the files of the source, and their numbers, which add up to all files."""

        def by_reason(what: str, reasons: Mapping[str, int]) -> list[tuple[str, int]]:
            return [(f"{what}: {name.replace('_', ' ')}", num) for name, num in reasons.items()]

        counts, excluded = self.counts, "excluded by --exclude, --include_regex or --exclude_regex"
        rows = [
            ("examples in the dataset", counts.get("examples", 0)),
            ("augmented copies among them, which are not files", -counts.get("variants", 0)),
            *by_reason("rejected", self.rejects),
            *by_reason("left out", counts.get("dropped", {})),
            ("copies in a second folder tree", counts.get("copies", 0)),
            ("left out by --limit", counts.get("over_limit", 0)),
            (excluded, counts.get("excluded", 0)),
            *by_reason("ignored", counts.get("ignored", {})),
        ]
        return [(name, count) for name, count in rows if count]

    def split(self, name: str | Sequence[str]) -> Split:
        """Returns a split by name, or several such as `("train", "val")`, one after the other.

        Raises:
            ManifestError: if the dataset has no such split, or one is named twice.
        """
        names = (name,) if isinstance(name, str) else tuple(name)
        if len(set(names)) < max(1, len(names)):
            raise ManifestError(f"expected one split, or several different ones, received {name!r}")
        if missing := [wanted for wanted in names if wanted not in self.splits]:
            present = ", ".join(sorted(self.splits)) or "none"
            raise ManifestError(f"no split {missing[0]!r} in this dataset; it has {present}")
        parts = [self.splits[wanted] for wanted in names]
        return Split(
            label_counts=tuple(map(sum, zip(*(part.label_counts for part in parts), strict=True))),
            shards=tuple(shard for part in parts for shard in part.shards),
        )

    @property
    def _record(self) -> dict[str, Any]:
        """What the file says of the layout, for readers that do not compute it."""
        slots = sorted(self.layout.features.items())
        features = {name: dataclasses.asdict(slot) for name, slot in slots}
        return {"stride": self.layout.stride, "length": self.layout.length, "features": features}

    def to_json(self) -> str:
        """Returns the manifest as JSON text; equal manifests give equal bytes."""
        sums = self.statistics and {
            "split": STATISTICS_SPLIT,
            **dataclasses.asdict(self.statistics),
        }
        content = {
            "format_version": self.label_kind.format_version,
            "name": self.name,
            "image": {"shape": list(self.image_shape), "dtype": "uint8"},
            **self.label_kind.entry,
            "label_names": list(self.label_names),
            "record": self._record,
            "splits": {
                name: {
                    "num_examples": split.num_examples,
                    "label_counts": dict(zip(self.label_names, split.label_counts, strict=True)),
                    "shards": [dataclasses.asdict(shard) for shard in split.shards],
                }
                for name, split in self.splits.items()
            },
            **({"statistics": sums} if sums else {}),
            **({"tables": dict(self.tables)} if self.tables else {}),
            **{name: getattr(self, name) for name in _AS_THEY_ARE},
        }
        return json.dumps(content, indent=1, ensure_ascii=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, file_name: str = FILE_NAME) -> Manifest:
        """Parses and checks the text that `to_json` returned, or its UTF-8 bytes.

        Raises:
            ManifestError: which names the file, if the text is not a manifest, has another format
                version, or contradicts itself.
        """
        try:
            content = json.loads(text)
            version = content["format_version"]
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"{file_name} is not a dataset manifest: {error}") from error
        if version not in range(1, FORMAT_VERSION + 1):
            raise ManifestError(
                f"{file_name} has format version {version}, but this program reads versions up to "
                f"{FORMAT_VERSION}; install the release that wrote it, or build the dataset again"
            )
        try:
            check_types(content, _PARTS, "")
            label_names = tuple(content["label_names"])
            height, width, channels = content["image"]["shape"]
            facts = {
                name: content[name] for name in ("name", "tables", *_AS_THEY_ARE) if name in content
            }
            if "statistics" in content:
                check_types(content["statistics"], _SUMS, "statistics")
                facts["statistics"] = PixelStatistics.from_dict(content["statistics"])
            manifest = cls(
                image_shape=(height, width, channels),
                label_names=label_names,
                splits={
                    name: Split(
                        label_counts=tuple(split["label_counts"][label] for label in label_names),
                        shards=tuple(Shard(**shard) for shard in split["shards"]),
                    )
                    for name, split in content["splits"].items()
                },
                label_kind=kind_in(content),
                **facts,
            )
            manifest._check_consistency(content)
        except ManifestError as error:
            raise ManifestError(f"{file_name}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ManifestError(f"{file_name} is damaged: {error!r}") from error
        return manifest

    def _check_consistency(self, content: Mapping[str, Any]) -> None:
        """Refuses a manifest that contradicts itself, with which a reader would read garbage."""
        if content["record"] != self._record or content["image"]["dtype"] != "uint8":
            raise ManifestError(
                f"the record layout does not match images of uint8, shape {self.image_shape} and "
                f"{self.num_classes} classes; build the dataset again"
            )
        made = Preprocessing.from_dict(self.preprocessing) if self.preprocessing else None
        if made and made.image_shape != self.image_shape:
            found = f"but its preprocessing makes {made.image_shape}; build the dataset again"
            raise ManifestError(f"expected images of shape {self.image_shape}, {found}")
        audit: dict[str, Any] = {"measures": {}, "findings": [], **self.audit}
        check_types(audit, {"measures": {}, "findings": [{}]}, "audit")
        names = [("dataset", self.name), *(("split", name) for name in self.splits)]
        for kind, name in [*names, *(("shard", shard.name) for shard in self.shards)]:
            if not _SAFE_NAME.fullmatch(name):
                raise ManifestError(
                    f"expected the name of a {kind}, of up to 200 letters, digits, '_', '-' and "
                    f"'.', received {name[:250]!r}; a name that could be a path is refused"
                )
        for name, split in self.splits.items():
            counts, total = split.label_counts, split.num_examples
            # Of classes each example has one; of other labels any number.
            fits = all(0 <= count <= total for count in counts)
            fits &= not self.label_kind.one_hot or sum(counts) == total
            if not fits or content["splits"][name]["num_examples"] != total:
                raise ManifestError(f"the counts of split {name!r} do not add up")
            for shard in split.shards:
                if shard.num_bytes != (expected := shard.num_examples * self.layout.stride):
                    found = f"should have {expected} bytes, not {shard.num_bytes}"
                    raise ManifestError(f"{shard.name} {found}")
        if found := self.statistics:
            height, width, channels = self.image_shape
            num_pixels = self.split(STATISTICS_SPLIT).num_examples * height * width
            expected = STATISTICS_SPLIT, num_pixels, channels
            received = content["statistics"]["split"], found.num_pixels, len(found.sums)
            if received != expected:
                what = "statistics of (split, pixels, channels)"
                raise ManifestError(f"expected {what} {expected}, received {received}")

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Manifest:
        """Reads the manifest of a finished dataset, in a local folder or, by URL, on a store.

        Raises:
            ManifestError: if it is missing (the build did not finish) or cannot be used.
            UserError, StoreError: if the URL cannot be used, or the store does not answer.
        """
        folder = Folder(directory)
        path = folder.path(FILE_NAME)
        try:
            content = folder.read(FILE_NAME)
        except FileNotFoundError:
            exists = folder.remote or Path(folder).is_dir()
            names = {p.name for p in Path(folder).glob("*")} if not folder.remote else ()
            if not exists:
                why = "the folder does not exist"
            elif "export" in names:
                why = "this is a run, not a dataset; give the folder of a finished dataset"
            elif names and not any(n == BUILD_DIR or n.endswith(".tfrecord") for n in names):
                build = f"{command('build')} --input {shlex.quote(str(folder))} --output OUT"
                why = f"this is a folder of images, not of a dataset; build it first: {build}"
            else:
                why = "the build did not finish; run the same build command again to resume it"
                if replace.is_under_way(folder):
                    why += " (a build with --overwrite was replacing it: with --overwrite)"
            raise ManifestError(f"{path} is missing: {why}") from None
        except OSError as error:
            raise ManifestError(f"cannot read {path}: {error}") from error
        return cls.from_json(content, file_name=path)


def check_types(value: Any, expected: Any, place: str) -> None:
    """Raises a KeyError or TypeError if parsed JSON has other types than `expected`, see `_PARTS`.

    Numbers are at least 0; further entries of mappings are not checked. `place` names the value.
    """
    wanted = expected if isinstance(expected, type) else type(expected)
    # The exact type, because a bool is an int too.
    if type(value) is not wanted or (wanted is int and value < 0):
        kind = {int: "a number of at least 0", str: "a text", list: "a list", dict: "a mapping"}
        raise TypeError(f"expected {kind[wanted]} for {place}, received {value!r:.80}")
    if wanted is list:
        kinds = expected if len(expected) > 1 else expected * len(value)
        for number, (element, kind) in enumerate(zip(value, kinds, strict=True)):
            check_types(element, kind, f"{place}[{number}]")
    for name in (value if "*" in expected else expected) if wanted is dict else ():
        check_types(
            value[name], expected.get(name, expected.get("*")), f"{place}.{name}".lstrip(".")
        )
