"""Training-ready TFRecords: the format, its reader and its checks.

This module is the whole public API. TensorFlow is imported when `make_dataset` is first used, so
that build workers, checks and processes that train with JAX or PyTorch start without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfrecord_io.format.examples import read_examples
from tfrecord_io.format.manifest import Manifest, ManifestError
from tfrecord_io.reading.batches import make_batches
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.reading.order import BatchOrder
from tfrecord_io.version import VERSION

if TYPE_CHECKING:
    from tfrecord_io.reading.reader import make_dataset

__version__ = VERSION

__all__ = [
    "BatchOrder",
    "Manifest",
    "ManifestError",
    "MappedDataset",
    "make_batches",
    "make_dataset",
    "read_examples",
]


def __getattr__(name: str) -> Any:
    """Imports `make_dataset`, which needs TensorFlow, when it is first used (PEP 562)."""
    if name == "make_dataset":
        from tfrecord_io.reading.reader import make_dataset

        return make_dataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
