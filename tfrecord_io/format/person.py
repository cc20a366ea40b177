r"""A person: patient 17 of one site and patient 17 of another are two.

>>> str(Person("Bern/2", "17")), Person.read("Bern%2F2/17", {"Bern/2"})
('Bern%2F2/17', Person(site='Bern/2', name='17'))
>>> Person("", "Mu\u0308ller") == Person("", "M\u00fcller")
True
>>> persons(pa.array(["1", None, "2"]), pa.array(["A", "A", None])).to_pylist()
['A/1', None, '2']
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.terminal.spelling import one_form


@dataclasses.dataclass(frozen=True)
class Person:
    """A patient by the name that a site gives; the site is empty if there is one site only.

    As a text, which datasets have, the site stands before the name. Equal whatever the Unicode
    form of the two.
    """

    site: str
    name: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "site", one_form(self.site))  # the dataclass is frozen
        object.__setattr__(self, "name", one_form(self.name))

    def __str__(self) -> str:
        # Escaped, so that site a with patient b/1 is not site a/b with patient 1.
        site = self.site.replace("%", "%25").replace("/", "%2F")
        return f"{site}/{self.name}" if site else self.name

    @classmethod
    def read(cls, text: str, sites: Collection[str]) -> Person:
        """Returns the person of a text, where these are the sites (in one form) that there are."""
        site, slash, name = text.partition("/")
        site = one_form(site.replace("%2F", "/").replace("%25", "%"))
        return cls(site, name) if slash and site in sites else cls("", text)


def persons(names: pa.Array, sites: pa.Array) -> pa.Array:
    """Returns the texts of persons, large_string [num_images]; null where the name is null."""
    names, sites = (column_in_one_form(column.cast(pa.large_string())) for column in (names, sites))
    escaped = pc.replace_substring(pc.replace_substring(sites, "%", "%25"), "/", "%2F")
    joined = pc.binary_join_element_wise(escaped, names, pa.scalar("/", pa.large_string()))
    has_site = pc.fill_null(pc.not_equal(sites, ""), False)
    return pc.if_else(has_site, joined, names)


def column_in_one_form(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns a column of texts in `spelling.one_form`."""
    # Arrow's own utf8_normalize (25.0) decomposes for NFC, too.
    if pc.all(pc.string_is_ascii(texts)).as_py() in (True, None):
        return texts
    return pa.array([text and one_form(text) for text in texts.to_pylist()], texts.type)
