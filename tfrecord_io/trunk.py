"""The frozen part of a network as a file, and the datasets of feature maps that it makes.

A trunk file is a Keras file (uint8 image in, feature map out) with two more members: its facts as
JSON, and the layers above the cut. `train/trunk.py` writes it, and this module reads it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import IO, Any

from tfrecord_io.manifest import Manifest, ManifestError
from tfrecord_io.stores.folder import path_in, read_file

#: Name of the trunk's copy in a dataset of feature maps.
FILE_NAME = "trunk.keras"

#: Members of a trunk file besides those of Keras: the facts, and the layers above the cut.
FACTS_NAME, REST_NAME = "trunk.json", "rest.keras"


def seen_path(trunk: Path) -> Path:
    """Returns where the list of the images lies that a trunk of a run has seen: beside it."""
    return trunk.with_suffix(".seen.parquet")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trunk:
    """What a trunk file says about itself.

    Attributes:
        model: name of the network, such as `vgg16`; `layer` is that of its last frozen layer.
        weights: where its weights are from, such as `imagenet`; no path.
        image_shape: (height, width, channels) of the uint8 images that it takes.
        feature_shape: (height, width, channels) of the feature map that it returns.
        rest_layers: number of layers from the cut to the layer that makes the map flat, the input
            included; 0 if none of them has weights.
    """

    model: str
    layer: str
    weights: str
    image_shape: tuple[int, int, int]
    feature_shape: tuple[int, int, int]
    rest_layers: int

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Trunk:
        """Makes the facts from their JSON values; a KeyError if one is missing."""
        fields = {field.name: values[field.name] for field in dataclasses.fields(cls)}
        for name in ("image_shape", "feature_shape"):
            height, width, channels = values[name]
            fields[name] = (height, width, channels)
        return cls(**fields)


def read_trunk(file: str | os.PathLike[str] | IO[bytes]) -> Trunk:
    """Returns the facts of a trunk file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not a trunk file.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            return Trunk.from_dict(json.loads(archive.read(FACTS_NAME)))
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"expected a file that train/trunk.py wrote, with the member {FACTS_NAME}: {error}"
        ) from error


def find_trunk(
    directory: str | os.PathLike[str], dataset: Manifest
) -> tuple[Trunk, bytes] | tuple[None, None]:
    """Returns the trunk of a dataset's feature maps and the bytes of its file; None for images.

    Raises:
        ManifestError: if the trunk's copy in the folder is not the recorded file.
    """
    if not dataset.holds_features:
        return None, None
    trunk, recorded = Trunk.from_dict(dataset.source["trunk"]), dataset.source["trunk"]["sha256"]
    path = path_in(directory, FILE_NAME)
    try:
        content = read_file(directory, FILE_NAME)
    except OSError as error:
        raise ManifestError(
            f"cannot read {path}: {error.strerror or error}; copy the trunk back"
        ) from error
    if hashlib.sha256(content).hexdigest() != recorded:
        raise ManifestError(
            f"{path} is not the trunk that made these features, of SHA-256 {recorded[:12]}…; copy "
            "the right file back, or extract the features again"
        )
    return trunk, content
