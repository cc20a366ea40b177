"""The options of the decoder: how a file becomes pixels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from PIL import Image

from tfrecord_io.terminal.flags import check, flag

#: Types of the values of images. uint8 is the default, and all that format version 1 knows.
DTYPES = ("uint8", "uint16")

#: The unit of values that have no physical one: their share of the range that the bits can store.
SHARE = "share of white"

#: Pillow's filters by the value of --resize. All of them antialias when they reduce a picture.
RESIZE_FILTERS: Mapping[str, Image.Resampling] = {
    name: Image.Resampling[name.upper()] for name in ("bilinear", "bicubic", "lanczos", "box")
}

#: What becomes of a picture of another shape than the stored one, and what it is then called.
FITS: Mapping[str, str] = {"stretch": "stretched", "pad": "padded"}

#: See `Preprocessing.no_window`.
FRAME_RANGE = "frame_range"


def two_numbers(text: str) -> tuple[float, float]:
    """Parses the value of a flag such as 40,400; raises a ValueError if it is not two numbers."""
    first, second = map(float, text.split(","))
    return first, second


@dataclasses.dataclass(frozen=True, kw_only=True)
class Physical:
    """The formula of a dataset of uint16: physical value = slope * stored value + intercept."""

    unit: str
    slope: float
    intercept: float

    def __post_init__(self) -> None:
        if not (0 < self.slope < math.inf and math.isfinite(self.intercept)):
            raise ValueError(
                "rescale must be a slope above 0 and an intercept, received "
                f"{self.slope},{self.intercept}"
            )

    @classmethod
    def of_unit(cls, unit: str, rescale: tuple[float, float] | None) -> Physical:
        """Returns the formula of a unit: `rescale` (slope and intercept), or by default 1, -32768.

        Without a physical unit, stored values from 0 to 65,535 mean black to white.
        """
        slope, intercept = (1 / 65_535, 0.0) if unit == SHARE else rescale or (1.0, -32_768.0)
        return cls(unit=unit, slope=slope, intercept=intercept)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How a file becomes pixels; the fields with a text are flags of the build.

    Attributes:
        height: of the stored image in pixels, as the width is.
        channels: colour becomes ITU-R 601-2 luma where grey is stored; grey is repeated for RGB.
        dtype: in uint16 the levels of eight-bit files are spread over its range (times 257).
        window: center and width of the grey levels.
        no_window: `FRAME_RANGE` to show a DICOM frame without a window from its lowest value to its
            highest, the padding aside, except that eight stored bits which are not rescaled keep
            their levels; None to reject it, as where there are no such files.
        physical: the formula of the values of uint16; None for those of the files, from the lowest
            that a file can store, where no DICOM file needs a formula.
        fit: `pad` scales both sides by one factor, to the nearest pixel, and centers the picture.
        min_fill: the least share of a stored side that a padded picture fills. By default a picture
            of more than twice the stored shape is squeezed: a scan of 1536x496 would have 72 of 224
            rows, too few to see the disease (figures: benchmarks/README.md).

    Values out of range raise a ValueError, as in `Physical`.
    """

    height: int = 224
    width: int = 224
    channels: int = flag(1, "1 for grey, 3 for RGB", choices=(1, 3))
    resize: str = flag(
        "bilinear", "resize filter, always with antialiasing", choices=tuple(RESIZE_FILTERS)
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
        parse=two_numbers,
        expected="CENTER,WIDTH",
        metavar="CENTER,WIDTH",
    )
    no_window: str | None = FRAME_RANGE
    physical: Physical | None = None
    background: str | None = flag(
        None,
        "what is behind transparent pixels (default: a file that has some is a reject)",
        choices=("black", "white"),
    )
    fit: str = flag(
        "pad",
        "pictures of another shape: pad keeps it and adds black (but see --min_fill), stretch "
        "changes it",
        choices=tuple(FITS),
    )
    min_fill: float = flag(
        0.5,
        "with --fit pad: a picture fills at least this share of the height and of the width; a "
        "very wide or high one is squeezed for that. 0 keeps every shape",
        least=0,
        most=1,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.no_window not in (None, FRAME_RANGE):
            raise ValueError(f"no_window must be {FRAME_RANGE} or absent: {self.no_window!r}")
        if min(self.height, self.width) < 1 or max(self.height, self.width) > 16_384:
            raise ValueError(
                f"image_size must be in 1..16384 pixels a side, received {self.height}x{self.width}"
            )
        if self.window and not (self.window[1] >= 1 and math.isfinite(sum(self.window))):
            raise ValueError(
                f"window must be a center and a width of at least 1, received {self.window}"
            )
        if self.window and self.dtype != "uint8":
            raise ValueError(f"window is for uint8: {self.dtype} keeps the whole range")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return self.height, self.width, self.channels

    def box(self, width: float, height: float) -> tuple[int, int, int, int]:
        """Returns (left, top, right, bottom) of a picture in the stored image; the rest is padding.

        The picture's sides may be in any unit. Ties are rounded as in `PIL.ImageOps.pad`.
        """
        columns, rows = self.width, self.height
        if self.fit == "pad" and width * rows > height * columns:
            rows = max(round(height / width * columns), math.ceil(self.min_fill * rows), 1)
        elif self.fit == "pad":
            columns = max(round(width / height * rows), math.ceil(self.min_fill * columns), 1)
        left, top = round((self.width - columns) / 2), round((self.height - rows) / 2)
        return left, top, left + columns, top + rows

    def identity(self) -> dict[str, Any]:
        """Returns what decides the pixels, by flag."""
        values = self.to_dict()
        return {"image_size": [values.pop("height"), values.pop("width")], **values}

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values by name."""
        return dataclasses.asdict(self) | {"window": self.window and list(self.window)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """Returns the options for a result of `to_dict`, or raises a KeyError or a ValueError."""
        values = {"min_fill": 0.0, **values}  # a dataset that does not name it kept every shape
        try:
            if values["window"]:
                values["window"] = tuple(values["window"])
            if values["physical"]:
                values["physical"] = Physical(**values["physical"])
            return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})
        except (TypeError, OverflowError) as error:
            raise ValueError(f"preprocessing of another type than expected: {error}") from None
