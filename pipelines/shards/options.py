"""The options of the decoder: what is stored of each picture."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from tfrecord_io.decoding.options import (
    BACKGROUNDS,
    DTYPES,
    FITS,
    RESIZE_FILTERS,
    Physical,
    Preprocessing,
)
from tfrecord_io.flags import check, flag


def _image_size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if not match:
        raise ValueError
    return int(match[1]), int(match[2] or match[1])


def _two_numbers(text: str) -> tuple[float, float]:
    first, second = map(float, text.split(","))
    return first, second


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """What is stored of each picture.

    Raises:
        ValueError: if a value is wrong, or two options contradict each other.
    """

    image_size: tuple[int, int] | None = flag(
        None,
        "height and width in pixels (default: 224; 28 for fashion_mnist)",
        parse=_image_size,
        expected="224 or HEIGHTxWIDTH",
        metavar="N|HxW",
    )
    channels: int = flag(1, "1 for grey, 3 for RGB", choices=(1, 3))
    resize: str = flag(
        "bilinear", "resize filter, always with antialiasing", choices=tuple(RESIZE_FILTERS)
    )
    fit: str = flag(
        "stretch",
        "pictures of another shape: stretch changes it, pad keeps it and adds black",
        choices=tuple(FITS),
    )
    dtype: str = flag(
        "uint8",
        "type of the stored pixels; uint16 keeps the depth of 16-bit files, which uint8 rejects",
        choices=DTYPES,
    )
    window: tuple[float, float] | None = flag(
        None,
        "DICOM in uint8: the grey levels that become the 256 stored ones, such as 40,400 in "
        "Hounsfield units (default: what each file says, or the range of its stored bits)",
        parse=_two_numbers,
        expected="CENTER,WIDTH",
        metavar="CENTER,WIDTH",
    )
    rescale: tuple[float, float] | None = flag(
        None,
        "DICOM in uint16: the physical value of a stored number is SLOPE times the number plus "
        "INTERCEPT, in the unit of the files, such as Hounsfield units (default: 1,-32768)",
        parse=_two_numbers,
        expected="SLOPE,INTERCEPT",
        metavar="SLOPE,INTERCEPT",
    )
    background: str | None = flag(
        None,
        "what is behind transparent pixels (default: a file that has some is a reject)",
        choices=BACKGROUNDS,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.rescale:
            Physical.of_unit("US", self.rescale)  # it checks the values
            if self.dtype != "uint16":
                raise ValueError("--rescale is for --dtype uint16")
        _ = self.preprocessing  # it checks the values together

    @property
    def preprocessing(self) -> Preprocessing:
        """How a file becomes pixels."""
        height, width = self.image_size or (224, 224)
        names = ("channels", "resize", "fit", "dtype", "window", "background")
        return Preprocessing(
            height=height, width=width, **{name: getattr(self, name) for name in names}
        )

    def identity(self) -> dict[str, Any]:
        """Returns what decides the pixels, by flag."""
        pixels = self.preprocessing
        return {
            "image_size": [pixels.height, pixels.width],
            "channels": self.channels,
            "resize": self.resize,
            **({"dtype": self.dtype, "format_version": 2} if self.dtype != "uint8" else {}),
            **({"background": self.background} if self.background else {}),
            **({"window": list(self.window)} if self.window else {}),
            **({"fit": self.fit} if self.fit != "stretch" else {}),
        }
