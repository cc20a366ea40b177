"""Makes a stored image visible as a picture."""

from __future__ import annotations

import numpy as np
from PIL import Image


def picture(image: np.ndarray) -> Image.Image:
    """Returns an image, uint8 [height, width, 1 or 3], as a grey or RGB picture."""
    return Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
