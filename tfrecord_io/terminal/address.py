"""Addresses, which are opened as they were given and shown without what is secret in them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tfrecord_io.terminal.errors import UserError

# The stores in whose addresses `?` and `#` are characters of a name.
_BUCKETS = ("s3", "gs", "az")


class Address(str):
    """A path or URL as it may be shown: without user name, password, query and fragment.

    >>> address = Address("https://me:password@host/x.zip?signature=abc")
    >>> address, address.hides_something
    ('https://host/x.zip', True)

    Addresses with the same shown form are equal.

    Attributes:
        opened: the address as it was given, which only `tfrecord_io.stores` may use.
    """

    opened: str

    def __new__(cls, given: str | os.PathLike[str]) -> Self:
        """Parses a path or URL; returns an `Address` as it is.

        Raises:
            UserError: if what should be the port of a URL is not a number.
        """
        given = os.fspath(given)
        if isinstance(given, cls):
            return given
        # Stores pass over a second slash, so names in a folder would not begin with its address.
        given = re.sub(f"^((?:{'|'.join(_BUCKETS)})://[^/]+)//+", r"\1/", given)
        address = super().__new__(cls, _shown(given))
        address.opened = given
        return address

    @property
    def hides_something(self) -> bool:
        """Whether there is a part that is not shown."""
        return self.opened != self

    def __truediv__(self, name: str) -> Address:
        """Returns the address of a file in this folder."""
        return Address(f"{self.opened.rstrip('/')}/{name}")


def as_given(value: str) -> str:
    """Returns an `Address` with what is secret in it, for a process that opens it; else `value`."""
    return value.opened if isinstance(value, Address) else value


def _shown(given: str) -> str:
    scheme, is_url, rest = given.partition("://")
    if not is_url:
        return given
    if scheme not in _BUCKETS:
        try:
            _ = urlsplit(given).port
        except ValueError:  # an unescaped / or # in a password ends the host, and with it the port
            raise UserError(
                "cannot use the given URL: its port is not a number. In a user name or a password, "
                "write characters such as / and # as %2F and %23"
            ) from None
        rest = re.split("[?#]", rest, maxsplit=1)[0]
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def is_remote(directory: str | os.PathLike[str]) -> bool:
    """Returns whether a folder is named by a URL such as gs://bucket/data."""
    return "://" in os.fspath(directory)


def is_inside(one: str, other: str) -> bool:
    """Returns whether an address is below the folder of another, or the same.

    >>> is_inside("s3://bucket/run/export", "s3://bucket/run/"), is_inside("runs/b", "runs/a")
    (True, False)
    """
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
    if not os.fspath(given):
        raise UserError("expected a path, received an empty text; for this folder give .")
    return Path(given)
