"""Training-ready TFRecords: the format, its reader and its checks.

This module is the whole public API. TensorFlow is imported only when a function needs it, so that
build workers, checks and PyTorch processes start without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfrecord_io.manifest import Manifest, ManifestError, Shard, Split
from tfrecord_io.reading.opening import read_statistics
from tfrecord_io.schema import FeatureSlot, RecordLayout, image_key
from tfrecord_io.statistics import PixelStatistics

if TYPE_CHECKING:
    from tfrecord_io.reading.reader import make_dataset

__all__ = [
    "FeatureSlot",
    "Manifest",
    "ManifestError",
    "PixelStatistics",
    "RecordLayout",
    "Shard",
    "Split",
    "image_key",
    "make_dataset",
    "read_statistics",
]

_LAZY = {"make_dataset": "tfrecord_io.reading.reader"}


def __getattr__(name: str) -> Any:
    """Imports a name that needs TensorFlow when it is first used (PEP 562)."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
