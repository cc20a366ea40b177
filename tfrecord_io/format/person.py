r"""A person as a text: patient 17 of one site and patient 17 of another are two.

>>> person("Bern/2", "Mu\u0308ller") == person("Bern/2", "M\u00fcller"), person("", "17")
(True, '17')
>>> persons(pa.array(["1", None, "2"]), pa.array(["A/B", "A", None])).to_pylist()
['A%2FB/1', None, '2']
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.terminal.printing import one_form


def person(site: str, name: str) -> str:
    """Returns the text of a patient; the site is empty if there is one site only.

    The site stands before the name. Equal whatever the Unicode form of the two.
    """
    # Escaped, so that site a with patient b/1 is not site a/b with patient 1.
    site = one_form(site).replace("%", "%25").replace("/", "%2F")
    return f"{site}/{one_form(name)}" if site else one_form(name)


def persons(names: pa.Array, sites: pa.Array) -> pa.Array:
    """Returns the texts of persons, large_string [num_images]; null where the name is null."""
    rows = zip(names.to_pylist(), sites.to_pylist(), strict=True)
    texts = [None if name is None else person(site or "", name) for name, site in rows]
    return pa.array(texts, pa.large_string())


def column_in_one_form(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns a column of texts in `printing.one_form`."""
    # Arrow's own utf8_normalize (25.0) decomposes for NFC, too.
    if pc.all(pc.string_is_ascii(texts)).as_py() in (True, None):
        return texts
    return pa.array([text and one_form(text) for text in texts.to_pylist()], texts.type)
