"""A page as data: blocks, each with a macro of its name in `page.html.jinja`; and its HTML.

The template escapes all texts; a `Markup` is shown as it is. A text alone is a paragraph.
"""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import markupsafe
import numpy as np
from PIL import Image

from tfrecord_io.terminal.printing import printable

if TYPE_CHECKING:
    import jinja2


class Note(NamedTuple):
    """A paragraph; `look` is `soft`, `lead`, `lead first` or `caution`."""

    text: str
    look: str = "soft"


class Heading(NamedTuple):
    """A heading within a section."""

    text: str


class Items(NamedTuple):
    """A list of sentences."""

    sentences: Sequence[str]


class Box(NamedTuple):
    """Blocks together: `card` is a frame; `grid`, `masonry`, `figures`, `stack` arrange them."""

    blocks: Sequence[Any]
    look: str = "card"
    title: str = ""


class Details(NamedTuple):
    """Blocks that a click on the title shows; `badge` is the severity of a finding.

    With the badge `fold`, a wide window shows them without a click.
    """

    title: str
    blocks: Sequence[Any]
    badge: str = ""
    is_open: bool = False


class Facts(NamedTuple):
    """A frame with a name and a value a row."""

    title: str
    values: Mapping[str, Any]


class Cell(NamedTuple):
    """A cell of a table: its text, more about it, and its look.

    `share`, 0 to 1, is the strength of its shade, if its look is `heat` or `heat right`.
    """

    text: Any
    small: str = ""
    look: str = ""
    share: float = 0.0


class Measure(NamedTuple):
    """A cell with a figure, the count behind it, and its interval, as texts.

    `ends` are the value and the ends of the interval between 0 and 1, to draw; empty for no bar.
    """

    text: str
    behind: str = ""
    interval: str = ""
    ends: Sequence[float] = ()


class Table(NamedTuple):
    """A table that scrolls to the side, with a label for screen readers.

    A row has texts, counts, None for a dash, `Cell` or `Measure`; the first one names the row. Its
    look `tall` scrolls downwards, too, and `matrix` has its columns in the middle.
    """

    label: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    look: str = ""

    @property
    def counts(self) -> set[int]:
        """The places of the columns of counts."""
        cells = (pair for row in self.rows for pair in enumerate(row))
        return {n for n, c in cells if isinstance(c, int) or getattr(c, "look", "") == "count"}


class Pictures(NamedTuple):
    """Small pictures, which a click enlarges: the URL and the description of each."""

    pictures: Sequence[tuple[str, str]]


class Figure(NamedTuple):
    """Pictures beside each other: URL, description and caption of each; and what they show."""

    sides: Sequence[tuple[str, str, str]]
    caption: str
    small: str = ""


class Drawing(NamedTuple):
    """A drawing in a frame, whose SVG has a description."""

    title: str
    svg: markupsafe.Markup


class Bars(NamedTuple):
    """A chart of horizontal bars: the name, the length and the value as text of each."""

    title: str
    bars: Sequence[tuple[str, float, str]]


class Tile(NamedTuple):
    """A figure on top of a page: its name, its value and more about it."""

    name: str
    value: str
    small: Sequence[str] = ()
    look: str = ""


class Tiles(NamedTuple):
    """The figures on top of a page."""

    tiles: Sequence[Tile]


class Section(NamedTuple):
    """A part of a page, to which its navigation leads; the id is the anchor."""

    id: str
    title: str
    blocks: Sequence[Any]


class Page(NamedTuple):
    """A page: its title in the browser, what stands on top, its sections, and its last line."""

    title: str
    over: str
    heading: str
    top: Sequence[Any]
    sections: Sequence[Section]
    footer: str


# ---- how it becomes HTML


@functools.cache
def environment() -> jinja2.Environment:
    """Returns what compiles the templates, once in a process."""
    # Workers import this module and render no page.
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        # Names from the data cannot control a terminal; the page's own markup is kept.
        finalize=lambda text: printable(text) if type(text) is str else text,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"plain": plain, "show": show}
    return templates


def render(page: Page) -> str:
    """Returns the HTML of a page, which needs no network and no script."""
    return str(show(page)).strip()


def show(block: Any) -> markupsafe.Markup:
    """Returns a block, or a list of them, as the macro with the name of its class shows it.

    A text is a paragraph, and nothing is nothing.
    """
    if type(block) is list:
        return markupsafe.Markup("\n").join(map(show, filter(None, block)))
    block = Note(block) if isinstance(block, str) else block
    template = environment().get_template("page.html.jinja")
    return getattr(template.module, type(block).__name__)(block)


def markup(text: str, *values: str) -> markupsafe.Markup:
    """Returns markup of a format string, with its values as text.

    >>> markup("<b>{}</b>", "1 < 2")
    Markup('<b>1 &lt; 2</b>')
    """
    return markupsafe.Markup(text).format(*map(printable, values))


def plain(value: Any) -> Any:
    """Returns a value of a manifest or a configuration as a reader expects it.

    >>> plain([64, None, {"a": True}])
    '64, not set, a: yes'
    """
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        value = [f"{name}: {plain(item)}" for name, item in value.items()]
    if isinstance(value, list | tuple):
        return ", ".join(str(plain(item)) for item in value) or "none"
    return value


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
