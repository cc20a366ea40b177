"""The versions of the software that trains, for config.json and the page of a result."""

from __future__ import annotations

import importlib.metadata
import sys

import keras
import numpy as np


def versions() -> dict[str, str]:
    """Returns the versions of Python, Keras, the backend and NumPy, by name."""
    backend = keras.backend.backend()
    return {
        "python": sys.version.split()[0],
        "keras": keras.__version__,
        backend: importlib.metadata.version(backend),
        "numpy": np.__version__,
    }
