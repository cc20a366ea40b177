"""Which images belong together, so that no split, no fold and no bootstrap draw may divide them.

>>> group_names(["17", None, "17"], ["content:a", "content:b", "content:c"]).to_pylist()
['patient:17', 'content:b', 'patient:17']
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: Texts, of which None stands for an unknown one.
Texts = Sequence[str | None] | pa.Array | pa.ChunkedArray


def group_names(patients: Texts, others: Texts | None = None) -> pa.Array:
    """Returns the name of each image's group: its patient or, without one, what else is known.

    Args:
        patients: the patient of each image, None if unknown.
        others: the group of each image whose patient is unknown, such as `content:` and a hash,
            so that copies of a file are one group; by default each is a group by itself.

    Returns:
        large_string [num_images], such as `patient:17`.
    """
    prefix, separator = (pa.scalar(text, pa.large_string()) for text in ("patient:", ""))
    names = pc.binary_join_element_wise(prefix, _texts(patients), separator)
    if not names.null_count:
        return names
    if others is None:
        # Padded, so that the names sort as the images do.
        others = [f"image:{row:012d}" for row in range(len(names))]
    return pc.coalesce(names, _texts(others))


def group_codes(names: pa.Array) -> np.ndarray:
    """Returns int64 [num_images], the place of each group among the sorted names of groups.

    Args:
        names: what `group_names` returned.
    """
    return pc.rank(names, tiebreaker="dense").to_numpy().astype(np.int64) - 1


def _texts(values: Texts) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    elif not isinstance(values, pa.Array):
        values = pa.array(values, pa.large_string())
    return values.cast(pa.large_string())
