"""Small files in the shape of Fashion-MNIST, and how they become the published ones."""

import gzip
import hashlib
import struct

import numpy as np
import pytest

from pipelines.sources import fashion_mnist

IMAGES = np.random.default_rng(0).integers(1, 256, (40, 28, 28)).astype(np.uint8)
LABELS = (np.arange(40) * 7 % 10).astype(np.uint8)
NUM = {"train": 40, "test": 20}


def idx(values: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return gzip.compress(header + values.tobytes(), mtime=0)


FILES = {
    "train-images-idx3-ubyte.gz": idx(IMAGES),
    "train-labels-idx1-ubyte.gz": idx(LABELS),
    "t10k-images-idx3-ubyte.gz": idx(IMAGES[:20]),
    "t10k-labels-idx1-ubyte.gz": idx(LABELS[:20]),
}


def publish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the small files the published ones, so that their MD5 sums are compared for real."""
    sums = {name: hashlib.md5(content).hexdigest() for name, content in FILES.items()}
    monkeypatch.setattr(fashion_mnist, "MD5_SUMS", sums)
