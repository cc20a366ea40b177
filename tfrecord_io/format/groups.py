"""Which images belong together, so that no split, no fold and no bootstrap draw may divide them.

>>> images = pa.table({
...     "patient": ["17", None, "17", None, None, None],
...     "study": [None, "s1", None, "s1", None, None],
...     "path": ["a.png", "b.png", "c.png", "d.png", "e.tif", "e.tif#frame-2"],
... })
>>> groups = group_images(images, near_duplicates=np.array([[1, 2]]))
>>> groups.names.to_pylist()
['patient:17', 'patient:17', 'patient:17', 'patient:17', 'file:e.tif', 'file:e.tif']
>>> groups.codes
array([1, 1, 1, 1, 0, 0])
>>> groups.sources
{'patient': 4, 'file': 2}
>>> groups.unit
'group'

The second and the fourth image are of one study. The second is a near duplicate of the third, whose
patient is known.
"""

from __future__ import annotations

import collections
import dataclasses
import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: What an image's group can be known from, the best first.
SOURCES = ("patient", "study", "series", "source", "file", "image")

#: Column of examples.parquet with the source of copies that carry its name.
COPY_OF = "copy_of"

#: Columns of examples.parquet from which groups are made.
INPUTS = ("patient", "study", "series", COPY_OF, "path", "file_xxh3")

#: A chain of near duplicates with more images than this is ignored: a dataset in which many
#: different scans look alike would become one group.
MAX_CHAIN = 100

_PLURALS = {"study": "studies", "series": "series"}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """The group of each image.

    Attributes:
        names: large_string [num_images], what the group is known from and its name, such as
            `patient:17`. Files and single images are named by a hash of their content if there is
            one, so that equal names in two datasets are the same images.
    """

    names: pa.Array

    @functools.cached_property
    def codes(self) -> np.ndarray:
        """int64 [num_images], the place of each group among the sorted names of groups."""
        return pc.rank(self.names, tiebreaker="dense").to_numpy().astype(np.int64) - 1

    @functools.cached_property
    def sources(self) -> dict[str, int]:
        """How many images' groups are known from each of `SOURCES`; those without one are absent.

        `image` means that nothing is known: each source file is a group by itself.
        """
        prefixes = pc.list_element(pc.split_pattern(self.names, ":", max_splits=1), 0)
        counts = collections.Counter(prefixes.to_pylist())
        return {source: counts[source] for source in SOURCES if source in counts}

    @property
    def unit(self) -> str:
        """One of `SOURCES` if all groups are known from it, else `group`."""
        return next(iter(self.sources)) if len(self.sources) == 1 else "group"

    def take(self, rows: np.ndarray) -> Groups:
        """Returns the groups of some images, int64 [num_chosen], in that order."""
        return dataclasses.replace(self, names=self.names.take(pa.array(rows, pa.int64())))


def plural_unit(unit: str) -> str:
    """Returns the plural of a `Groups.unit`."""
    return _PLURALS.get(unit, f"{unit}s")


def group_images(images: pa.Table, near_duplicates: np.ndarray | None = None) -> Groups:
    """Groups images by patient; where it is unknown by study, series, copied source or file.

    An image of an unknown patient joins the images of its study, series, source or file, and so
    their patient if one of them has one. Near duplicates join the groups of both images.

    Args:
        images: those of the columns `INPUTS` of examples.parquet that are there. `patient` has
            the text of a `Person`. Frames and augmented copies have the path of their file.
        near_duplicates: int64 [num_pairs, 2], rows of pictures that are the same, or nearly.
    """
    names = pa.nulls(images.num_rows, pa.large_string())
    for source, column in zip(SOURCES, INPUTS[:4], strict=False):
        if column in images.column_names and not pa.types.is_nested(images[column].type):
            values = _texts(images[column])
            names = _fill(names, values, _prefixed(source, values))
    if names.null_count:
        names = _fill(names, *_files(images))
    if near_duplicates is None or not len(near_duplicates):
        return Groups(names=names)
    # In the order of their names, so that the first of a component is the best known.
    texts = names.unique().to_pylist()
    texts.sort(key=lambda text: (SOURCES.index(text.split(":")[0]), text))
    best = pa.array(texts, pa.large_string())
    groups = pc.index_in(names, best).to_numpy()
    is_believed, _ = believe(groups, near_duplicates)
    first = _components(len(texts), groups[near_duplicates[is_believed]])
    return Groups(names=best.take(pa.array(first[groups])))


def _fill(names: pa.Array, values: pa.Array, own: pa.Array) -> pa.Array:
    """Names images after others with the same value, and those without any such by `own`."""
    known = pc.and_(pc.is_valid(names), pc.is_valid(values))
    # Sorted, so that the name does not depend on the order of the images.
    named = pa.table({"value": values, "name": names}).filter(known).sort_by("name")
    first = named.group_by("value", use_threads=False).aggregate([("name", "first")])
    places = pc.index_in(values, first["value"].combine_chunks())
    return pc.coalesce(names, first["name_first"].combine_chunks().take(places), own)


def _files(images: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Returns the file of each image, and the name of the group of that file's images."""
    if "path" not in images.column_names:
        # Padded, so that the names sort as the images do.
        rows = pa.array([f"{row:012d}" for row in range(images.num_rows)], pa.large_string())
        return rows, _prefixed("image", rows)
    paths = _texts(images["path"])
    # See `preprocess.frame_path`.
    files = pc.replace_substring_regex(paths, "#frame-[1-9][0-9]*$", "")
    hashes = pa.nulls(len(paths), pa.large_string())
    if "file_xxh3" in images.column_names:
        hashes = _texts(images["file_xxh3"])
    # Only the first frame of a file has the hash of the file.
    table = pa.table({"file": files, "path": paths, "hash": hashes})
    facts = table.group_by("file").aggregate([("path", "count_distinct"), ("hash", "max")])
    facts = facts.take(pc.index_in(files, facts["file"].combine_chunks())).combine_chunks()
    content = pc.coalesce(facts["hash_max"], files)
    several = pc.greater(facts["path_count_distinct"], 1)
    own = pc.if_else(several, _prefixed("file", content), _prefixed("image", content))
    return files, own.combine_chunks()


def believe(codes: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """Tells which pairs of like images are not in a chain of more than `MAX_CHAIN` images.

    Args:
        codes: int64 [num_images], the group of each image. Pairs within a group make no chain.
        pairs: int64 [num_pairs, 2], rows of the images.

    Returns:
        bool [num_pairs], and the numbers of images of the chains that are too long.
    """
    is_across = codes[pairs[:, 0]] != codes[pairs[:, 1]]
    chains = _components(len(codes), pairs[is_across])
    sizes = np.bincount(chains, minlength=len(codes))
    is_believed = ~is_across | (sizes[chains[pairs[:, 0]]] <= MAX_CHAIN)
    return is_believed, tuple(sorted(sizes[sizes > MAX_CHAIN].tolist()))


def _components(num_nodes: int, pairs: np.ndarray) -> np.ndarray:
    """Returns int64 [num_nodes], the smallest node with which each is connected by pairs."""
    parents = list(range(num_nodes))

    def root(node: int) -> int:
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    for first, second in pairs.tolist():
        low, high = sorted((root(first), root(second)))
        parents[high] = low
    return np.array([root(node) for node in range(num_nodes)], np.int64)


def _prefixed(source: str, values: pa.Array) -> pa.Array:
    prefix, separator = (pa.scalar(text, pa.large_string()) for text in (f"{source}:", ""))
    return pc.binary_join_element_wise(prefix, values, separator)


def _texts(values: pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks().cast(pa.large_string())
