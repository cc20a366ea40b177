"""Several collections as one source, in which every image has the site that it comes from.

A TOML file names the sites, with a table for each:

    [site.london]
    source = "archive"
    input = "london.zip"

An image's path is the name of its site and its full path there, and its patient is the name of its
site and the patient there. So neither keys nor patients of two sites can be the same.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.layout import split_called
from pipelines.listing.listing import Listing, ListingOptions, SiteOptions, folded
from pipelines.listing.refs import (
    OTHERS,
    REF_SCHEMA,
    SITE,
    ImageRef,
    other_columns,
    source_paths,
    with_column,
)
from pipelines.listing.selection import choose_classes
from pipelines.sources import frames
from pipelines.sources.reader import Reader
from pipelines.sources.source import Source
from pipelines.stores.remote import is_remote
from tfrecord_io.label_kinds import LabelKind
from tfrecord_io.manifest import WEIGHT
from tfrecord_io.printing import listed

#: What the table of a site must name, by the kind of its source.
_NEEDED = {"archive": "input", "directory": "input", "kaggle": "kaggle_dataset"}

# A name becomes the first folder of paths.
_SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

_MAX_SHOWN = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """One table of the TOML file. `source` to `labels` are named as the flags of a build.

    Attributes:
        name: of the site.
        source: kind of its source: archive, directory or kaggle.
        input: path or URL of its archive or folder.
        kaggle_dataset: OWNER/NAME of its dataset on Kaggle.
        tree: the folder that holds its SPLIT or CLASS folders.
        group_regex: pattern whose first group is the patient in a file's name.
        labels: its table of labels.
        split: the split of all its images; None if they keep their own.
        rename: names of classes in the dataset, by their names at the site.
    """

    name: str
    source: str
    input: str | None = None
    kaggle_dataset: str | None = None
    tree: str | None = None
    group_regex: str | None = None
    labels: Path | None = None
    split: str | None = None
    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)


def read_sites(file: Path) -> tuple[Site, ...]:
    """Reads the sites of a TOML file. Paths in it start at its folder.

    Args:
        file: the file.

    Raises:
        errors.UserError: if the file cannot be read, or a table lacks something or has too much.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise errors.UserError(f"--input {file} could not be read as TOML: {error}") from None
    tables = content.get("site")
    if not isinstance(tables, dict) or not tables or len(content) > 1:
        raise errors.UserError(
            f"--input {file}: expected a table [site.NAME] for each site and nothing else, "
            f"received {', '.join(content) or 'an empty file'}"
        )
    sites = []
    for name, table in tables.items():
        if problem := _problem(name, table):
            raise errors.UserError(f"--input {file}: [site.{name}] {problem}")
        for key in ("input", "labels"):
            if key in table and not is_remote(table[key]):
                try:
                    table[key] = str(file.parent / Path(table[key]).expanduser())
                except RuntimeError as error:
                    raise errors.UserError(f"--input {file}: [site.{name}] {error}") from None
        if "labels" in table:
            table["labels"] = Path(table["labels"])
        if "split" in table:
            table["split"] = split_called(table["split"])
        sites.append(Site(name=name, **table))
    _require_inputs_apart(file, sites)
    archives = collections.Counter(
        site.kaggle_dataset.rpartition("/")[2] for site in sites if site.kaggle_dataset
    )
    for archive, count in archives.items():
        if count > 1:
            raise errors.UserError(
                f"--input {file}: {count} sites download {archive}.zip from Kaggle; give all but "
                "one of them as source = 'archive'"
            )
    return tuple(sites)


def _require_inputs_apart(file: Path, sites: Sequence[Site]) -> None:
    """Refuses two sites that would list the same images, each as images of its own patients."""
    places = [
        (site.name, site.source, site.tree, site.labels, _real_path(site.input))
        for site in sites
        if site.input
    ]
    for (one, *layout, place), (other, *other_layout, inner) in itertools.permutations(places, 2):
        if layout == other_layout and inner.is_relative_to(place):
            raise errors.UserError(
                f"--input {file}: the input of [site.{other}] is also in that of [site.{one}], so "
                "its images would be there twice; leave one of them out, or give each a tree or "
                "labels of its own"
            )


def _real_path(place: str) -> Path:
    return Path(place if is_remote(place) else os.path.realpath(place))


def _problem(name: str, table: Any) -> str | None:
    """Returns what is wrong with the table of a site, or None."""
    if not _SITE_NAME.fullmatch(name):
        return "must have a name of letters, digits, - and _"
    if not isinstance(table, dict):
        return "is not a table"
    known = {field.name for field in dataclasses.fields(Site)} - {"name"}
    if unknown := sorted(set(table) - known):
        return f"has {', '.join(unknown)}, expected {', '.join(sorted(known))}"
    rename = table.get("rename", {})
    if not isinstance(rename, dict):
        return f'has rename = {rename!r}, expected a table such as {{ "normal" = "NORMAL" }}'
    texts = [(key, value) for key, value in table.items() if key != "rename"]
    for key, value in [*texts, *rename.items()]:
        if not isinstance(value, str) or not value or "\0" in value:
            return f"has {key} = {value!r}, expected text"
    kind = table.get("source")
    if kind not in _NEEDED:
        return f"has source = {kind!r}, expected {', '.join(map(repr, _NEEDED))}"
    others = set(_NEEDED.values()) - {_NEEDED[kind]}
    if _NEEDED[kind] not in table or others & set(table):
        return f"has source = {kind!r}, which needs {_NEEDED[kind]}, and no {', '.join(others)}"
    try:
        split_called(table.get("split", "train"))
    except ValueError as error:
        return f"has {error}"
    return None


@contextlib.contextmanager
def naming(site: str) -> Iterator[None]:
    """Puts the name of a site in front of the message of an error."""
    try:
        yield
    except (errors.UserError, errors.BuildError) as error:
        raise type(error)(f"site {site}: {error}") from None


@dataclasses.dataclass(frozen=True)
class SitesSource(Source):
    """The images of several sites.

    Attributes:
        sources: the source of each site, by its name.
    """

    sources: Mapping[str, Source]

    @property
    def must_be_unpacked(self) -> bool:
        """Whether every site must be unpacked; see `Source.must_be_unpacked`."""
        return all(source.must_be_unpacked for source in self.sources.values())

    def prepare(self, scratch_dir: Path) -> SitesSource:
        """Prepares the source of each site; see `Source.prepare`."""
        prepared = {}
        for name, source in self.sources.items():
            with naming(name):
                prepared[name] = source.prepare(scratch_dir)
        return SitesSource(prepared)

    def list(self, options: ListingOptions) -> Listing:
        """Lists the images of all sites, each frame as an image; see `Source.list`.

        The table of images has a column `site`.

        Raises:
            errors.UserError: also if two sites spell a class differently.
        """
        listings = []
        for name, source in self.sources.items():
            with naming(name):
                listings.append(_list_site(name, source, options.sites[name]))
        ignored: collections.Counter[str] = collections.Counter()
        num_frames: collections.Counter[str] = collections.Counter()
        for listing in listings:
            ignored.update(listing.ignored)
            num_frames.update(listing.frames)
        refs = _join([listing.refs for listing in listings])
        refs = choose_classes(refs, options.classes, ignored)
        notes = _compare_classes(_classes_of_sites(refs, options.label_kind))
        return Listing(
            refs=refs,
            rejects=tuple(reject for listing in listings for reject in listing.rejects),
            copies=sum(listing.copies for listing in listings),
            ignored=ignored,
            num_files=sum(listing.num_files for listing in listings),
            frames=dict(num_frames),
            notes=(*(note for listing in listings for note in listing.notes), *notes),
        )

    @contextlib.contextmanager
    def open(self) -> Iterator[_Reader]:
        """Opens the sources of all sites on a worker; see `Source.open`."""
        with contextlib.ExitStack() as stack:
            readers = {}
            for name, source in self.sources.items():
                with naming(name):
                    readers[name] = stack.enter_context(source.open())
            yield _Reader(readers)

    def describe(self) -> dict[str, Any]:
        """Returns the source's entry in the manifest; see `Source.describe`."""
        sites = {name: source.describe() for name, source in self.sources.items()}
        return {"kind": "sites", "sites": sites}


class _Reader(Reader):
    """Reads an image with the reader of its site, which the first part of its path names."""

    def __init__(self, readers: Mapping[str, Reader]) -> None:
        self._readers = readers
        self.num_parallel_reads = max(reader.num_parallel_reads for reader in readers.values())

    def announce(self, ref: ImageRef) -> None:
        reader, inner = self._find(ref)
        reader.announce(inner)

    def read(self, ref: ImageRef) -> bytes:
        reader, inner = self._find(ref)
        return reader.read(inner)

    def read_start(self, ref: ImageRef, length: int) -> bytes:
        reader, inner = self._find(ref)
        return reader.read_start(inner, length)

    def open(self, ref: ImageRef) -> BinaryIO | None:
        reader, inner = self._find(ref)
        return reader.open(inner)

    def _find(self, ref: ImageRef) -> tuple[Reader, ImageRef]:
        site, _, path = ref.path.partition("/")
        return self._readers[site], ref._replace(path=path)


def _list_site(name: str, source: Source, options: SiteOptions) -> Listing:
    """Lists the images of one site, with the site in their paths and patients."""
    listing = frames.list_frames(source, options.listing)
    refs = listing.refs
    prefix = pa.scalar(f"{name}/", pa.large_string())
    labels = refs["label"].cast(pa.string()).to_pylist()
    if unknown := sorted(set(options.rename) - set(labels)):
        raise errors.UserError(
            f"rename has {', '.join(map(repr, unknown))}, but the classes are "
            f"{', '.join(map(repr, sorted(set(labels))))}"
        )
    columns: dict[str, Any] = {
        "root": [""] * refs.num_rows,
        "path": _joined(prefix, source_paths(refs)),
        "patient": _joined(prefix, refs["patient"].combine_chunks()),
        "label": [options.rename.get(label, label) for label in labels],
    }
    if options.split:
        columns["split"] = [options.split] * refs.num_rows
    for column, values in columns.items():
        refs = with_column(refs, column, values)
    site = pa.array([name] * refs.num_rows, REF_SCHEMA.field("split").type)
    return dataclasses.replace(
        listing,
        refs=refs.append_column(SITE, site),
        rejects=tuple(
            dataclasses.replace(reject, source_path=f"{name}/{reject.source_path}")
            for reject in listing.rejects
        ),
        notes=tuple(f"site {name}: {note}" for note in listing.notes),
    )


def _joined(prefix: pa.Scalar, texts: pa.Array) -> pa.Array:
    """Returns the texts behind the prefix; null stays null."""
    return pc.binary_join_element_wise(prefix, texts, pa.scalar("", pa.large_string()))


def _join(tables: Sequence[pa.Table]) -> pa.Table:
    """Returns the images of all sites, sorted by path."""
    names = [*REF_SCHEMA.names, SITE]
    refs = pa.concat_tables([table.select(names) for table in tables]).unify_dictionaries()
    others = _join_others(tables)
    if others is not None:
        refs = refs.append_column(OTHERS, others)
    return refs.combine_chunks().sort_by([("path", "ascending"), ("frame", "ascending")])


def _join_others(tables: Sequence[pa.Table]) -> pa.StructArray | None:
    """Returns the further columns of all sites; null where a site does not have a column."""
    parts = [other_columns(table) for table in tables]
    if 0 < sum(WEIGHT in part for part in parts) < len(parts):
        raise errors.UserError(
            f"the images of some sites have a {WEIGHT}, those of others have none; give the tables "
            "of all sites this column, or none"
        )
    columns = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        kind = _common_type([part[name] for part in parts if name in part])
        try:
            chunks = [
                part[name].cast(kind) if name in part else pa.nulls(table.num_rows, kind)
                for part, table in zip(parts, tables, strict=True)
            ]
        except pa.ArrowException as error:
            raise errors.UserError(
                f"the column {name} of the sites' label tables cannot become one: {error}; rename "
                "or leave it out at one site"
            ) from None
        columns[name] = pa.chunked_array(chunks, kind).combine_chunks()
    return pa.StructArray.from_arrays(columns.values(), list(columns)) if columns else None


def _common_type(columns: Sequence[pa.Array]) -> pa.DataType:
    """Returns the type of a column that different tables have.

    As in one table, numbers of two types become the wider one, numbers and text become text, and
    columns without any value do not count.
    """
    known = [column for column in columns if column.null_count < len(column)]
    schemas = [pa.schema([("", column.type)]) for column in known or columns]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowTypeError:
        return pa.string()


def _classes_of_sites(refs: pa.Table, label_kind: LabelKind) -> dict[str, set[str]]:
    """Returns the names of the labels that each site has."""
    names: dict[str, set[str]] = collections.defaultdict(set)
    for row in refs.group_by([SITE, "label"]).aggregate([]).to_pylist():
        names[row[SITE]].update(label_kind.names_in(row["label"]))
    return dict(sorted(names.items()))


def _compare_classes(classes: Mapping[str, set[str]]) -> list[str]:
    """Returns a sentence for each site that lacks classes of the others.

    Args:
        classes: names of the classes of each site.

    Raises:
        errors.UserError: if two sites spell a class differently.
    """
    by_form: dict[str, dict[str, str]] = collections.defaultdict(dict)
    for site, names in classes.items():
        # A site that has two such names itself tells them apart, and they stay two classes.
        forms = collections.Counter(map(folded, names))
        for name in sorted(names):
            if forms[folded(name)] == 1:
                by_form[folded(name)].setdefault(name, site)
    for spellings in by_form.values():
        if len(spellings) > 1:
            shown = " and ".join(f"{name!a} (site {site})" for name, site in spellings.items())
            name, other = list(spellings)[:2]
            raise errors.UserError(
                f"the classes {shown} differ only in case, spaces or Unicode form; write rename = "
                f'{{ "{other}" = "{name}" }} into the table of the one that is to change'
            )
    union = sorted(set().union(*classes.values()))
    notes = []
    for site, names in classes.items():
        if missing := [name for name in union if name not in names]:
            notes.append(
                f"site {site} has no image of {listed(missing, _MAX_SHOWN)}, which other "
                "sites have: a model may learn the site instead"
            )
    return notes
