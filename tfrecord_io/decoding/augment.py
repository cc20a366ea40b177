"""Makes variants of a picture by Pillow and NumPy: mirrored, turned, shifted, brighter, noisy.

The result depends only on the picture and on the key of the example, so a build gives the same
bytes on every machine. NumPy keeps the raw bits of its generators stable, but not the results of
most of their methods (NEP 19), so only `Generator.random`, a shift and a product of them, is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from PIL import Image

#: The largest changes of a variant, and part of a dataset's fingerprint. Raise `version` whenever
#: the same picture and key give different bytes. A scan of a left eye is roughly one of a right eye
#: mirrored; the other changes also occur between two recordings of the same eye.
RECIPE: Mapping[str, float] = {
    "version": 1,
    "mirror_probability": 0.5,
    "rotation_degrees": 5.0,
    "shift_fraction": 0.04,
    "brightness_fraction": 0.15,
    "speckle_deviation": 0.08,
}

_VARIANT_NAME = re.compile(r"#variant-\d+\Z")

#: The least value that counts as white: JPEG compression leaves white areas slightly below 255.
WHITE = 250


def variant_path(path: str, variant: int) -> str:
    """Returns the path from which `image_key` makes the key of a variant; 0 is the image itself.

    It is unique: the original of a file named like a variant, `a.jpeg#variant-1`, gets a suffix.
    """
    if not variant and not _VARIANT_NAME.search(path):
        return path
    return f"{path}#variant-{variant}"


def vary(
    pixels: bytes, image_shape: tuple[int, int, int], key: str, box: tuple[int, int, int, int]
) -> bytes:
    """Returns a variant of a picture, uint8, row-major [height, width, channels], as it was.

    The variant's key, 32 hexadecimal digits, seeds the changes. The box has left, top, right and
    bottom of the part that varies; the rest is padding.
    """
    rng = Generator(PCG64(SeedSequence(int(key, 16))))
    is_mirrored = rng.random() < RECIPE["mirror_probability"]
    # Shares of the largest changes, from -1 to 1.
    turned, down, aside, brighter = (2 * rng.random(4) - 1).tolist()
    stored = np.frombuffer(pixels, np.uint8).reshape(image_shape).copy()
    left, top, right, bottom = box
    picture = stored[top:bottom, left:right]
    height, width, channels = picture.shape
    angle = math.radians(RECIPE["rotation_degrees"]) * turned
    shift_y = RECIPE["shift_fraction"] * height * down
    shift_x = RECIPE["shift_fraction"] * width * aside
    if is_mirrored:
        picture = picture[:, ::-1]
    # Areas from outside the picture are filled with its mirror image, so that no edge appears.
    reach = math.sin(abs(angle)) * max(height, width) / 2 + max(abs(shift_y), abs(shift_x))
    margin = math.ceil(reach) + 1
    # numpy repeats the mirroring as needed, but a side of one pixel cannot be mirrored.
    mode = "reflect" if min(height, width) > 1 else "edge"
    padded = np.pad(picture, ((margin, margin), (margin, margin), (0, 0)), mode=mode)
    image = Image.fromarray(padded[:, :, 0] if channels == 1 else padded)
    # Rounded to multiples of 1/65,536, because the last bits of a cosine depend on the machine.
    cos, sin = (round(value * 65_536) / 65_536 for value in (math.cos(angle), math.sin(angle)))
    middle_y, middle_x = height / 2, width / 2
    # Pillow takes the inverse transform, from the result to the padded picture.
    coefficients = (
        cos, sin, margin + middle_x - shift_x - cos * middle_x - sin * middle_y,
        -sin, cos, margin + middle_y - shift_y + sin * middle_x - cos * middle_y,
    )  # fmt: skip
    image = image.transform(
        (width, height), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR
    )
    moved = np.asarray(image).reshape(height, width, channels).astype(np.float32)
    # All channels get the same speckle, so that a grey picture stored as RGB stays grey. The sum of
    # three uniform numbers is nearly normal, with a standard deviation of one half.
    noise = rng.random((3, height, width, 1)).sum(axis=0) - 1.5
    gain = 1 + RECIPE["brightness_fraction"] * brighter
    factor = (gain * (1 + 2 * RECIPE["speckle_deviation"] * noise)).astype(np.float32)
    varied = np.clip(np.rint(moved * factor), 0, 255)
    # White areas are padding and keep their value.
    stored[top:bottom, left:right] = np.where(moved >= WHITE, moved, varied)
    return stored.tobytes()
