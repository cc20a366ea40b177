"""Columns of the examples table as NumPy arrays of integers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def encode(column: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """Numbers the different values of a column.

    Args:
        column: of any type, dictionaries included.

    Returns:
        int64 [num_rows], the number of each row's value, or -1 where there is none; and the values
        in the order of their numbers.
    """
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy().astype(np.int64), encoded.dictionary
