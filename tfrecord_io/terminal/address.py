"""Paths, for `pathlib`, and URLs, for obstore; credentials belong into the environment."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Self

from tfrecord_io.terminal.errors import UserError


class Address(str):
    """A path, or the URL of a folder or file in a bucket: s3://, gs:// or az://.

    >>> Address("s3://bucket/scans") / "a.png"
    's3://bucket/scans/a.png'
    """

    def __new__(cls, given: str | os.PathLike[str]) -> Self:
        """Makes an address of a path or URL.

        Raises:
            UserError: if it is empty, or a URL with a login, `?` or a scheme that is not read.
        """
        text = os.fspath(given)
        if not text:
            raise UserError("expected a path or URL, received an empty text; for this folder, .")
        scheme, is_url, rest = text.partition("://")
        if is_url and not isinstance(given, cls):
            shown = f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"
            if "@" in rest.partition("/")[0] or "?" in rest:
                raise UserError(
                    f"cannot use {shown} with a login, ? or signature; give it without, and the "
                    "credentials in the environment (docs/sources.md)"
                )
            if scheme not in ("s3", "gs", "az"):
                raise UserError(
                    f"cannot use {shown}: expected s3://, gs:// or az://, received {scheme}://. "
                    "Download what a web server has, and give that path"
                )
            # Stores pass over a second slash, so names in a folder would not begin with its URL.
            text = re.sub("^([^/]+://[^/]+)//+", r"\1/", text)
        return super().__new__(cls, text)

    def __truediv__(self, name: str) -> Address:
        """Returns the address of a file in this folder, whose name may hold any character."""
        return str.__new__(Address, f"{self.rstrip('/')}/{name}")


def is_remote(directory: str | os.PathLike[str]) -> bool:
    """Returns whether a folder is named by a URL such as gs://bucket/data."""
    return "://" in os.fspath(directory)


def is_inside(one: str, other: str) -> bool:
    """Returns whether an address is below the folder of another, or the same."""
    if is_remote(one) or is_remote(other):
        return f"{one.rstrip('/')}/".startswith(f"{other.rstrip('/')}/")
    return Path(one).resolve().is_relative_to(Path(other).resolve())


def local_path(given: str | os.PathLike[str]) -> Path:
    """Returns a path on this machine; raises UserError for a URL or an empty text."""
    if is_remote(given):
        raise UserError(
            f"expected local files, received {Address(given)}; copy them to a disk of this machine "
            "and give that path"
        )
    return Path(Address(given))
