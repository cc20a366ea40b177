import re

import planted_scans as planted
import pytest
from builds import build_here
from image_files import jpeg, write_tree
from pages import Page, needs_chromium, require_good_page, require_shown

FLAGS = ("--image_size=96", "--max_reject_fraction=0.5")


@pytest.fixture(scope="module")
def flawed_card(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card")
    files = {**planted.planted_files(), "train/CNV/CNV-77-1.jpeg": b"no image"}
    source = write_tree(folder / "scans", files)
    return build_here(source, folder / "out", *FLAGS) / "report.html"


def test_the_page_stands_alone_and_names_each_reject_with_its_reason(flawed_card):
    text = flawed_card.read_text(encoding="utf-8")
    require_good_page(text, "jpeg")
    assert "train/CNV/CNV-77-1.jpeg" in text
    assert "not an image" in text


def test_near_duplicates_stand_side_by_side(flawed_card):
    pairs = re.findall(r'<figure class="card">(.*?)</figure>', flawed_card.read_text(), re.S)
    shown = [set(re.findall(r'alt="[^"]*: ([^"]+)"', pair)) for pair in pairs]
    expected = {frozenset(planted.SAVED_AGAIN), frozenset(planted.BRIGHTENED)}
    assert {frozenset(pair) for pair in shown} == expected


def test_file_and_class_names_are_text_and_never_markup(tmp_path):
    files = {f"train/<b>&'/<img src=x onerror=alert({n})>-{n}.jpeg": jpeg(n % 2) for n in range(6)}
    files["train/$1_2^$/$x$-7-1.jpeg"] = jpeg(7)
    out = build_here(write_tree(tmp_path / "in", files), tmp_path / "out", "--name=odd_names")
    text = (out / "report.html").read_text()
    assert "&lt;img src=x onerror=alert(" in text
    assert not re.search(r"<(?!img src=\"data:)img|<b>", text)
    assert "$1_2^$" in text
    Page(text)


# ---- in a browser


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_browser_shows_the_page_in_light_and_dark_at_its_full_width(
    flawed_card, tmp_path, width, dark
):
    require_shown(flawed_card, tmp_path, width, dark)
