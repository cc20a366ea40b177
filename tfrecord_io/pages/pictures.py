"""Stored images as pictures, and pictures within a page, as URLs that hold their bytes."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image


def picture(image: np.ndarray) -> Image.Image:
    """Returns an image, uint8 [height, width, 1 or 3], as a grey or RGB picture."""
    return Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)


def data_url(image: Image.Image, side: int, kind: str = "JPEG") -> str:
    """Returns a picture, with no side longer than `side`, as a JPEG or PNG in a URL."""
    smaller = image.copy()
    smaller.thumbnail((side, side), Image.Resampling.LANCZOS)
    with io.BytesIO() as file:
        smaller.save(file, kind, quality=80, optimize=kind == "PNG")
        return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
