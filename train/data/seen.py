"""What a network has seen: the images that its weights, statistics or thresholds depend on.

A run lists them in seen.parquet. A trunk that was cut from a run has their list beside it, not in
it, so that a trunk can be shared without it; features and the runs on them pass the list on.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfrecord_io.files import atomic_write
from tfrecord_io.trunk import Trunk, seen_path
from train.data.dataset import IDENTITY
from train.errors import ConfigError

FILE_NAME = "seen.parquet"

#: Where a seen image was used, the use that is nearest to the weights first.
PARTS = ("train", "val", "trunk")

_TEXT = pa.string()

# The file has the site only of a dataset that names it.
_SCHEMA = pa.schema([(name, _TEXT) for name in (*IDENTITY, "part")])

# Entries of the file's metadata.
_UNKNOWN, _TRUNK = b"unknown", b"trunk"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """The images that a network has seen.

    Attributes:
        images: a row an image: `key`, `pixels_xxh3`, `group`, `patient`, `site` and `part`, one of
            `PARTS`; texts, null if unknown.
        unknown: why these may not be all, such as `its first weights are from elsewhere (a.h5)`;
            empty if they are.
    """

    images: pa.Table = dataclasses.field(default_factory=_SCHEMA.empty_table)
    unknown: str = ""

    def write(self, path: Path, trunk: bytes = b"") -> None:
        """Writes the file.

        Args:
            path: of the file.
            trunk: digest of the trunk that it lies beside, if it does.
        """
        table = self.images
        if table["site"].null_count == len(table):
            table = table.drop_columns("site")
        facts = {_UNKNOWN: self.unknown.encode(), _TRUNK: trunk}
        with atomic_write(path) as file:
            pq.write_table(table.replace_schema_metadata(facts), file)

    def of_trunk(self) -> Seen:
        """Returns the same for a trunk that is cut from the network."""
        parts = pa.array(["trunk"] * len(self.images), _TEXT)
        images = self.images.set_column(len(IDENTITY), "part", parts)
        return dataclasses.replace(self, images=images)

    def without(self, part: str) -> Seen:
        """Returns the images of all parts but one."""
        images = self.images.filter(pc.not_equal(self.images["part"], part))
        return dataclasses.replace(self, images=images)


def read_seen(run: Path) -> Seen:
    """Returns what the network of a run has seen; unknown if the run is older.

    Args:
        run: folder of a run, or the export folder in it. A copy of the export elsewhere has no
            list.

    Raises:
        ConfigError: if the file is damaged.
    """
    folder = run.absolute()
    is_export = folder.name == "export" and not (folder / FILE_NAME).exists()
    path = (folder.parent if is_export else folder) / FILE_NAME
    return _read(path) or Seen(unknown=f"its run has no {FILE_NAME}")


def read_trunk_seen(path: Path, trunk: Trunk) -> Seen:
    """Returns what a trunk has seen, from the file beside it; unknown if there is none.

    ImageNet's published weights have seen no image of a dataset.

    Args:
        path: path of the trunk file.
        trunk: its facts.

    Raises:
        ConfigError: if the file is damaged.
    """
    if trunk.weights in ("imagenet", "none"):
        return Seen()
    found = _read(seen_path(path), digest_of(path)) if seen_path(path).exists() else None
    return found or Seen(unknown=f"the weights of its trunk are from elsewhere ({trunk.weights})")


def digest_of(trunk: Path) -> bytes:
    """Returns the digest by which a trunk is known to the file beside it."""
    with trunk.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest().encode()


def _read(path: Path, trunk: bytes = b"") -> Seen | None:
    """Returns the content of a file, or None if it is missing or belongs to another trunk."""
    try:
        table = pq.read_table(path)
        facts = table.schema.metadata or {}
        if "site" not in table.column_names:
            table = table.append_column("site", pa.nulls(len(table), _TEXT))
        images = table.select(_SCHEMA.names).cast(_SCHEMA)
    except FileNotFoundError:
        return None
    except (OSError, KeyError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path} is damaged ({error}); copy it again") from None
    if facts.get(_TRUNK, b"") != trunk:
        return None
    return Seen(images=images, unknown=facts.get(_UNKNOWN, b"").decode())


def collect(images: pa.Table, parts: Mapping[str, np.ndarray], trunk: Seen) -> Seen:
    """Returns what a run sees: each image once, in the part that is nearest to the weights.

    Args:
        images: of the dataset, see `Dataset.images`.
        parts: rows of `images` by the name of their part, in the order of `PARTS`.
        trunk: what the frozen layers below have seen; nothing if there are none.
    """
    tables = [
        images.take(rows).append_column("part", pa.array([name] * len(rows), _TEXT))
        for name, rows in parts.items()
    ]
    table = pa.concat_tables([*tables, trunk.images]).combine_chunks()
    # Two datasets may share a key, because it is made of the path.
    pixels = pc.fill_null(table["pixels_xxh3"], "")
    image = pc.binary_join_element_wise(table["key"], pixels, " ").combine_chunks()
    codes = image.dictionary_encode().indices.to_numpy()
    _, first = np.unique(codes, return_index=True)
    return dataclasses.replace(trunk, images=table.take(np.sort(first)))
