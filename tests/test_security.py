"""What SECURITY.md names is where it says."""

import re

from builds import ROOT

TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_every_file_that_is_named_exists():
    named = re.findall(r"`([\w/]+\.py)`", TEXT)
    assert len(named) > 10
    assert [name for name in named if not _exists(name)] == []


def _exists(name: str) -> bool:
    return any((ROOT / folder / name).exists() for folder in ("", "pipelines"))


def test_every_link_leads_to_a_page():
    links = re.findall(r"\]\((docs/[\w/.-]+)\)", TEXT)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
