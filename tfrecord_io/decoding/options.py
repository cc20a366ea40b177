"""The options of how a file becomes pixels; argparse reads them, see `terminal.flags`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tfrecord_io.terminal.flags import check, flag

#: Pillow's filters, in lower case. All of them antialias when they reduce a picture.
RESIZE_FILTERS = ("bilinear", "bicubic", "lanczos", "box")

# What every dataset of today has in common; a manifest names it all the same, for older readers.
_FIXED = {"dtype": "uint8", "no_window": None, "physical": None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How a file becomes pixels; the fields with a text are flags of the build.

    Attributes:
        height: of the stored image in pixels, as the width is.
        channels: colour becomes ITU-R 601-2 luma where grey is stored; grey is repeated for RGB.
        window: center and width of the grey levels of DICOM.
        fit: `pad` scales both sides by one factor, to the nearest pixel, and centers the picture.
        min_fill: the least share of a stored side that a padded picture fills. By default a picture
            of more than twice the stored shape is squeezed: a scan of 1536x496 would have 72 of 224
            rows, too few to see the disease (figures: docs/training.md).

    Values out of range raise a ValueError.
    """

    height: int = 224
    width: int = 224
    channels: int = flag(1, "1 for grey, 3 for RGB", choices=(1, 3))
    resize: str = flag(
        "bilinear", "resize filter, always with antialiasing", choices=RESIZE_FILTERS
    )
    window: tuple[float, float] | None = flag(
        None,
        "DICOM: the grey levels that become the 256 stored ones, such as 40,400 in Hounsfield "
        "units (default: what each file says, or else the range of the frame's values)",
        parse=lambda text: tuple(map(float, text.split(","))),
        expected="CENTER,WIDTH",
        metavar="CENTER,WIDTH",
    )
    background: str | None = flag(
        None,
        "what is behind transparent pixels (default: a file that has some is a reject)",
        choices=("black", "white"),
    )
    fit: str = flag(
        "pad",
        "pictures of another shape: pad keeps it and adds black (but see --min_fill), stretch "
        "changes it",
        choices=("stretch", "pad"),
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
        if min(self.height, self.width) < 1 or max(self.height, self.width) > 16_384:
            raise ValueError(
                f"image_size must be in 1..16384 pixels a side, received {self.height}x{self.width}"
            )
        window = self.window or (0, 1)
        if len(window) != 2 or not (window[1] >= 1 and math.isfinite(sum(window))):
            raise ValueError(
                f"window must be a center and a width of at least 1, received {window}"
            )

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
        values = {name: value for name, value in self.to_dict().items() if name not in _FIXED}
        return {"image_size": [values.pop("height"), values.pop("width")], **values}

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values by name."""
        window = self.window and list(self.window)
        return dataclasses.asdict(self) | {"window": window} | _FIXED

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """Returns the options for a result of `to_dict`, or raises a KeyError or a ValueError."""
        values = {"min_fill": 0.0, **values}  # a dataset that does not name it kept every shape
        if (values["dtype"], values["physical"]) != ("uint8", None):
            raise ValueError(f"images of {values['dtype']}, expected uint8; build them again")
        try:
            if values["window"]:
                values["window"] = tuple(values["window"])
            return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})
        except (TypeError, OverflowError) as error:
            raise ValueError(f"preprocessing of another type than expected: {error}") from None
