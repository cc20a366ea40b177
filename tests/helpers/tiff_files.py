"""Writes small TIFF files by tifffile."""

import io
from collections.abc import Sequence

import numpy as np
import tifffile


def tiff_file(pages: Sequence[np.ndarray], **settings: object) -> bytes:
    """Returns a TIFF of pages [height, width], or [height, width, 3] for colour."""
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        for page in pages:
            colours = {"photometric": "rgb"} if page.shape[-1] == 3 else {}
            writer.write(page, metadata=None, **colours | settings)
    return file.getvalue()
