"""What all HTML pages share: the settings and filters of their templates, and marks of axes."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import markupsafe

from tfrecord_io.printing import number, printable
from tfrecord_io.rejects import in_words

#: What the class names of the OCT data stand for.
_SPELLED_OUT = {
    "CNV": "choroidal neovascularization",
    "DME": "diabetic macular edema",
    "DRUSEN": "deposits under the retina, as in early macular degeneration",
}


@functools.cache
def environment(*folders: Path) -> jinja2.Environment:
    """Returns what compiles the templates of these folders and of this one, once in a process."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, Path(__file__).parent]),
        autoescape=True,
        # Names from the data cannot control a terminal; the page's own markup is kept.
        finalize=lambda text: printable(text) if type(text) is str else text,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (number, in_words, with_flags, plain, spelled_out):
        templates.filters[function.__name__] = function
    return templates


def spelled_out(label_names: Iterable[str]) -> str:
    """Returns what those names mean that are abbreviations of the OCT data, as a text for a page.

    >>> spelled_out(["DME", "NORMAL"])
    'DME: diabetic macular edema.'
    """
    meanings = [f"{name}: {_SPELLED_OUT[name]}" for name in label_names if name in _SPELLED_OUT]
    return "; ".join(meanings) + "." * bool(meanings)


class Tick(NamedTuple):
    """A mark on the axis of a chart: its position, 0 to 1, and its label."""

    place: float
    text: str


def ticks(low: float, top: float) -> tuple[Tick, ...]:
    """Returns up to seven marks between two values, spaced by 1, 2 or 5 times a power of ten."""
    span = top - low
    power = 10.0 ** math.floor(math.log10(span / 6))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * 6 >= span)
    # A value that is off by rounding alone is still on the axis.
    first, last = math.ceil(low / step - 1e-9), math.floor(top / step + 1e-9)
    return tuple(
        Tick((number * step - low) / span, f"{number * step:g}")
        for number in range(first, last + 1)
    )


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


def with_flags(text: str) -> markupsafe.Markup:
    """Returns the escaped text with each command-line flag in an element that does not wrap."""
    escaped = str(markupsafe.escape(printable(text)))
    flag = r"(--[a-z_]+(?: (?:patient|drop|keep|fail|auto|pad|\d+))?)"
    return markupsafe.Markup(re.sub(flag, r'<code class="flag">\1</code>', escaped))
