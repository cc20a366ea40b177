"""HTML pages as a test sees them: parsed, and in a headless browser."""

from __future__ import annotations

import html.parser
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(html.parser.HTMLParser):
    """The elements of a page, and whether they close in order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.ids = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if "id" in dict(attributes):
            self.ids.append(dict(attributes)["id"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def screenshot(page_path: Path, folder: Path, width: int, dark: bool) -> np.ndarray:
    """Returns the page as a browser shows it: uint8 [height, width, 3]."""
    picture = folder / f"shot-{width}-{dark}.png"
    scheme = 0 if dark else 1
    subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            f"--blink-settings=preferredColorScheme={scheme}",
            f"--user-data-dir={folder / f'profile-{width}-{dark}'}",
            f"--window-size={width},2400",
            f"--screenshot={picture}",
            page_path.as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    with Image.open(picture) as image:
        return np.asarray(image.convert("RGB"))


def overhang(page_path: Path, folder: Path, width: int) -> int:
    """Returns by how many pixels the page is wider than a window of this width."""
    # A script in a copy tells the width that the page wants; the page itself has none.
    text = page_path.read_text(encoding="utf-8")
    text = re.sub(r"<meta http-equiv=[^>]+>", "", text)
    frame = folder / "page.html"
    frame.write_text(text, encoding="utf-8")
    outer = folder / "outer.html"
    outer.write_text(
        f'<iframe id="f" src="page.html" style="width:{width}px;height:800px;border:0"></iframe>'
        "<script>f.onload = () => { document.title = 'sticks out by ' + "
        "(f.contentDocument.documentElement.scrollWidth - "
        "f.contentDocument.documentElement.clientWidth); }</script>",
        encoding="utf-8",
    )
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--allow-file-access-from-files",
            f"--user-data-dir={folder / 'profile'}",
            "--virtual-time-budget=5000",
            "--dump-dom",
            outer.as_uri(),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return int(re.search(r"<title>sticks out by (-?\d+)</title>", done.stdout)[1])
