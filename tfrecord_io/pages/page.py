"""What all HTML pages share: the settings and filters of their templates."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from tfrecord_io.decoding.rejects import in_words
from tfrecord_io.terminal.printing import number, printable

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


def markdown(text: Any) -> Any:
    r"""Returns a text that Markdown shows as it is, without markup, HTML and links.

    >>> markdown("**<b>** [free](https://x.org)")
    '\\*\\*&lt;b&gt;\\*\\* \\[free\\](https&#58;//x.org)'
    """
    if type(text) is not str:
        return text
    escaped = re.sub(r"([\\`*_{}\[\]|~#$])", r"\\\1", html.escape(printable(text), quote=False))
    # What becomes a link by itself, as on GitHub.
    return re.sub(r":(?=//)|@|(?<=www)\.", lambda found: f"&#{ord(found[0])};", escaped)


def spelled_out(label_names: Iterable[str]) -> str:
    """Returns what those names mean that are abbreviations of the OCT data, as a text for a page.

    >>> spelled_out(["DME", "NORMAL"])
    'DME: diabetic macular edema.'
    """
    meanings = [f"{name}: {_SPELLED_OUT[name]}" for name in label_names if name in _SPELLED_OUT]
    return "; ".join(meanings) + "." * bool(meanings)


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
