"""Tiny files in the shape of Fashion-MNIST."""

import gzip
import struct

import numpy as np

IMAGES = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
LABELS = np.array([9, 0, 3, 3, 1], dtype=np.uint8)


def idx(values: np.ndarray, *, type_code: int = 8) -> bytes:
    header = bytes([0, 0, type_code, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.tobytes()


def gzipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


FILES = {
    "train-images-idx3-ubyte.gz": gzipped(idx(IMAGES)),
    "train-labels-idx1-ubyte.gz": gzipped(idx(LABELS)),
    "t10k-images-idx3-ubyte.gz": gzipped(idx(IMAGES[:2])),
    "t10k-labels-idx1-ubyte.gz": gzipped(idx(LABELS[:2])),
}
