"""What a compressed table may unpack to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines import errors

_MAX_RATIO = 50
_HARMLESS_BYTES = 64 * 1024 * 1024
_BATCH_CELLS = 1_000


class Budget:
    """What an input of `num_bytes` may unpack to; errors name its path."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        self._path, self._left = path, max(num_bytes * _MAX_RATIO, _HARMLESS_BYTES)

    def take(self, num_bytes: int) -> None:
        """Counts bytes that are going to be unpacked; raises `errors.UserError` if too many."""
        self._left -= num_bytes
        if self._left < 0:
            raise errors.UserError(
                f"{self._path} unpacks to more than {_MAX_RATIO} times its size, which neither "
                "images nor tables do"
            )


def read_within(
    budget: Budget, file: pq.ParquetFile, columns: Sequence[str] | None = None
) -> pa.Table:
    """Returns columns of an open file, or all; raises `errors.UserError` if they are too large."""
    batches = []
    for batch in file.iter_batches(_BATCH_CELLS, columns=columns):
        budget.take(batch.nbytes + sum(map(_repeated_bytes, batch.columns)))
        batches.append(batch)
    return pa.Table.from_batches(batches).combine_chunks() if batches else file.read(columns)


def _repeated_bytes(column: pa.Array) -> int:
    """Returns how many bytes the texts of a column with a dictionary take without it, or 0."""
    if not (pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)):
        return 0
    return pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
