"""HTML pages as a test sees them: parsed, and in a headless browser."""

import contextlib
import html
import html.parser
import itertools
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

_CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

#: Marks a test that shows a page.
needs_chromium = pytest.mark.skipif(
    _CHROMIUM is None, reason="there is no Chromium to show the page"
)

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(html.parser.HTMLParser):
    """The elements of a page, and whether they close in order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.ids = [], [], []
        self.feed(text)
        self.close()

    def handle_startendtag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        self.ids += [attributes["id"]] if "id" in attributes else []

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def words(text: str) -> str:
    """Returns what a reader sees of a page."""
    body = text.partition("<body>")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def require_good_page(text: str, picture: str) -> Page:
    """Returns a page that is well-formed, needs no other file, and is accessible.

    Args:
        text: its HTML.
        picture: pattern of the kinds of its pictures, such as `png` or `jpeg`.
    """
    page = Page(text)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    # It needs no network and runs no script, and links to files beside it.
    assert not page.all("script")
    assert not page.all("link")
    links = re.findall(r"""(?:src|href)=["']([^"']+)""", text) + re.findall(r"url\(([^)]+)", text)
    assert links
    beside = r"[a-z][\w./-]+$"
    assert all(re.match(rf"data:image/({picture});base64,|#|{beside}", link) for link in links)
    assert "default-src 'none'" in text
    targets = {a["href"][1:] for a in page.all("a") if a["href"].startswith("#")}
    assert targets <= set(page.ids)
    assert page.all("html")[0]["lang"] == "en"
    # Pictures and charts are described, and tables can be scrolled by keyboard.
    assert page.all("img")
    assert all(image["alt"] for image in page.all("img"))
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
    assert len(page.all("title")) == 1 + len(page.all("svg"))
    scrolled = [div for div in page.all("div") if "scroll" in div.get("class", "").split()]
    assert scrolled
    assert all(div["tabindex"] == "0" and div["aria-label"] for div in scrolled)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    return page


def _chromium(folder: Path, *arguments: str) -> str:
    """Runs the browser without a window and a network; returns what it prints.

    On a busy machine it rarely hangs as it starts, so it gets three attempts.
    """
    off = ("gpu", "quic", "sync", "background-networking", "component-update")
    flags = ["--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in off)]
    for _ in range(3):
        profile = f"--user-data-dir={tempfile.mkdtemp(dir=folder)}"
        command = [_CHROMIUM, *flags, profile, *arguments]
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=40)
            return done.stdout
    pytest.fail("the browser hung three times")


def require_shown(page_path: Path, folder: Path, width: int, dark: bool) -> None:
    """Requires that a browser shows a page in its colours, at its full width and height.

    Nothing sticks out at the side.
    """
    # A script around a copy reads the width of the page, which itself has no script.
    text = page_path.read_text(encoding="utf-8")
    bare = re.sub(r"<meta http-equiv=[^>]+>", "", text)
    (folder / "page.html").write_text(bare, encoding="utf-8")
    (outer := folder / "outer.html").write_text(
        f'<iframe id="f" src="page.html" style="width:{width}px;height:800px;border:0"></iframe>'
        "<script>f.onload = () => { const e = f.contentDocument.documentElement; "
        "document.title = 'sticks out by ' + (e.scrollWidth - e.clientWidth); }</script>"
    )
    flags = "--allow-file-access-from-files", "--virtual-time-budget=5000", "--dump-dom"
    assert "<title>sticks out by 0</title>" in _chromium(folder, *flags, outer.as_uri())
    picture = folder / "shot.png"
    _chromium(
        folder,
        "--hide-scrollbars",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        # On a busy machine the last rows of the window may not be painted yet.
        "--run-all-compositor-stages-before-draw",
        f"--window-size={width},2600",
        f"--screenshot={picture}",
        page_path.as_uri(),
    )
    with Image.open(picture) as image:
        shown = np.asarray(image.convert("RGB"))[:2400]
    assert shown.shape[1] == width
    corner = shown[2, 2].astype(int)
    assert (corner < 60).all() if dark else (corner > 220).all()
    # Text and cards, on all of the height.
    assert (shown.reshape(24, -1).std(1) > 3).all()
