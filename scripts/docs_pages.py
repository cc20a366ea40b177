"""Writes the pages of the documentation site into build/docs, from which `make docs` builds it.

These are the pages of docs/, the README as the first page, the pages that lie elsewhere, the
reference of the commands (the output of `--help`) and the Python API (the docstrings).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
from pathlib import Path

import scan_tfrecords
import tfrecord_io

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "build" / "docs"
#: Pages that lie outside of docs/, and their names on the site.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "figures.md",
}


def place(source: Path) -> str:
    """Returns where a file of the repository is on the site, such as `audit.md`."""
    path = source.relative_to(ROOT).as_posix()
    return OUTSIDE.get(path, path.removeprefix("docs/"))


def page(source: Path) -> str:
    """Returns a page with its links to other pages as they are on the site."""

    def link(found: re.Match[str]) -> str:
        target = (source.parent / found[1]).resolve()
        here = os.path.dirname(place(source))  # noqa: PTH120 - of a path on the site
        return f"]({os.path.relpath(place(target), here or '.')}"

    return re.sub(r"\]\((?!https?:|#)([^)#]+)", link, source.read_text(encoding="utf-8"))


def help_of(command: str) -> str:
    """Returns what a command prints for `--help`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        scan_tfrecords.main([command, "--help"])
    return printed.getvalue()


def commands() -> str:
    """Returns the page of the commands."""
    parts = ["# Commands\n\nEach command and its flags, as `--help` prints them.\n"]
    for command, (_, purpose) in scan_tfrecords.COMMANDS.items():
        parts.append(f"## {command}\n\n{purpose.capitalize()}.\n")
        parts.append(f"```text\n{help_of(command)}```\n")
    return "\n".join(parts)


def api() -> str:
    """Returns the page of the Python API: directives that mkdocstrings replaces by docstrings."""
    parts = ["# Python API"]
    for module in (scan_tfrecords, tfrecord_io):
        parts.append(f"## {module.__name__}")
        names = [name for name in module.__all__ if not name.startswith("_")]
        parts += [f"::: {module.__name__}.{name}" for name in names]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Writes all pages."""
    os.environ["COLUMNS"] = "90"
    sys.argv[0] = "scan-tfrecords"  # --help names the program
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for source in [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in OUTSIDE)]:
        target = PAGES / place(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(source), encoding="utf-8")
    (PAGES / "commands.md").write_text(commands(), encoding="utf-8")
    (PAGES / "api.md").write_text(api(), encoding="utf-8")


if __name__ == "__main__":
    main()
