"""Refuses pictures that belong in pairs, such as scans and their masks, whatever they are called.

Masks, heat maps and other drawings of a scan have its file name, in a folder beside it or with a
word more. Classes may have the same file names too, if these are running numbers. So a few pictures
of each are read where the names are not enough.
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing import roles
from pipelines.listing.copies import source_of
from pipelines.listing.files import has_suffix
from pipelines.listing.images import Images
from pipelines.listing.options import ListingOptions
from pipelines.listing.refs import ImageRef, iterate_refs
from pipelines.sources.source import Reader, Source
from tfrecord_io.decoding.dicom import is_dicom, read_frame
from tfrecord_io.decoding.formats import read_picture
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import TIFF_SUFFIXES
from tfrecord_io.terminal.printing import counted, printable

# Of more files, those of some numbers are compared; with more folders beside each other, none.
_MAX_FILES, _MAX_NAMES = 10_000, 20

# The first, the second and the third number in a file's name.
_NUMBERS = [rf"^(?:[^/]*/)*(?:[^/0-9]*[0-9]+){{{k}}}[^/0-9]*0*(?P<number>[0-9]+)[^/]*$"
            for k in range(3)]  # fmt: skip

# Pictures of a folder that are read, and the largest file in bytes.
_NUM_READ, _LARGEST = 4, 32 * 1024 * 1024

# Two folders have the same names if this share of the smaller one's names is in the other. The
# second share and the least number of names settle it without a look at the pictures.
_SAME, _SAME_FOR_SURE, _LEAST_FOR_SURE = 0.5, 0.8, 5

# A picture is nearly binary if so many pixels have one of a few levels or that of their neighbour.
# Very small pictures have few levels anyhow.
_FEW_LEVELS, _FEW_SHARE, _FEWEST_PIXELS = 8, 0.9, 256

_BINARY = "nearly binary, as masks are"

# Words behind the name of a picture, as in 7_heat_map.png, 7b.png or 7_1.png, or before it, as in
# heat7.png or heat_img7.png; or the whole name, as in 7/mask.png.
_DIVIDED = {
    kind: re.compile(pattern.replace("LETTER", r"[^\W\d_]"))
    for kind, pattern in {
        "behind": r"(?P<rest>.+?)[ _.-]+(?P<word>LETTER+(?:[ _.-]+LETTER+)*\d?)",
        "glued": r"(?P<rest>.*\d)(?P<word>LETTER+)",
        "number": r"(?P<rest>.+?)[ _.-]+(?P<word>\d+)",
        "before": r"(?P<word>LETTER+)[ _.-]*(?P<rest>.*\d.*)",
        "ahead": r"(?P<word>LETTER+)[ _.-]+(?P<rest>.*\d.*)",
        "whole": r"(?P<word>.+)(?P<rest>)",
    }.items()
}
_BEFORE = ("before", "ahead")


# What can pair files: folders of a depth, or words at a place of their names, a key of `_DIVIDED`.
_Kind = int | str

#: The files of a folder or word, by what they share with their partners.
_Files = dict[str, ImageRef]


class _Look(NamedTuple):
    size: tuple[int, int]
    is_blank: bool
    is_binary: bool
    is_colour: bool


class _Pairs(NamedTuple):
    """Two folders or words, and files of the same names; `is_sure` if these are enough to ask."""

    kind: _Kind
    names: tuple[str, str]
    files: Sequence[tuple[ImageRef, ImageRef]]
    is_sure: bool

    @property
    def is_in_classes(self) -> bool:
        """Whether both are below the same class."""
        return self.files[0][0].label == self.files[0][1].label


def with_checked_pairs(images: Images, source: Source, options: ListingOptions) -> Images:
    """Refuses classes or folders whose pictures are pairs, until the user says what they are.

    `--layout`, or `--classes` for classes, says that both are wanted. The ledger notes classes
    and folders whose pictures are nearly binary.

    Raises:
        errors.UserError: with both sides, names of each, and the flags that leave one out.
    """
    layout = [role for role, _ in images.layout if role in roles.ROLES]
    refs, notes, named = images.table, list[str](), options.classes or options.grades
    _require_no_masks(refs["path"], layout, is_given=bool(options.layout))
    with source.open() as reader:
        look = functools.cache(functools.partial(_look, reader))
        for _, found in itertools.groupby(_pairs(refs, layout), lambda some: some.kind):
            open_pairs = []
            for some in found:
                drawn = _drawn_side([tuple(map(look, pair)) for pair in some.files])
                is_named = named and (options.label_regex or not some.is_in_classes)
                is_settled = options.layout or is_named
                if drawn and is_settled and some.is_in_classes:
                    what = _shown(some.kind, some.names[drawn[0]])
                    notes.append(f"the pictures of {what} are {drawn[1]}")
                elif (drawn or some.is_sure) and not is_settled:
                    open_pairs.append((some, drawn))
            if open_pairs:
                raise _error(open_pairs, layout, refs)
        return images.noted(*notes, *_notes_on_drawn(refs, look))


def _notes_on_drawn(refs: pa.Table, look: Callable[[ImageRef], _Look | None]) -> Iterator[str]:
    """Yields the classes and the folders whose pictures are nearly binary."""
    # TIFFs may hold many pictures.
    refs = refs.filter(pc.invert(has_suffix(refs["path"], TIFF_SUFFIXES)))
    labels = refs["label"].cast(pa.string())
    folders = pc.replace_substring_regex(refs["path"], r"^(.*/)?([^/]*)/[^/]*$", r"\2")
    seen = set[str]()
    for what, column in (("class", labels), ("folder", folders)):
        names = sorted(set(column.unique().to_pylist()) - seen)
        for name in names if len(names) <= roles.MANY_CLASSES else ():
            rows = np.flatnonzero(pc.equal(column, name).to_numpy())
            some = refs.take(rows[:: -(-len(rows) // _NUM_READ)])
            if _are_drawn(list(filter(None, map(look, iterate_refs(some))))):
                yield (
                    f"the pictures of the {what} {printable(name)!r} are {_BINARY}; if they "
                    f"are masks, leave them out with --exclude_regex '(^|/){re.escape(name)}/'"
                )
        seen.update(names)


def _require_no_masks(paths: pa.ChunkedArray, layout: Sequence[str], *, is_given: bool) -> None:
    """Refuses images of which some are in folders of masks, or are named like masks of others.

    If the layout is given, a folder holds masks if its files have the names of others, too.

    Raises:
        errors.UserError: with the flag that leaves them out.
    """
    is_mask = pc.match_substring_regex(paths, roles.MASK_PATH)
    stems = pc.replace_substring_regex(paths.filter(pc.invert(is_mask)), r"^.*/|\.[^./]*$", "")
    others, found, num_alike = set(stems.to_pylist()), list[tuple[str, str]](), 0
    for path in paths.filter(is_mask).to_pylist() if others else ():
        match, (*folders, file) = re.search(roles.MASK_FILE, path), path.split("/")
        named = [
            name for name, role in itertools.zip_longest(folders, layout[: len(folders)])
            # Whether a face wears a mask is a class.
            if roles.MASK_FOLDER.fullmatch(name) and (name, role) != ("mask", "class")
        ]  # fmt: skip
        num_alike += bool(match or named)
        if match and match[1] in others:
            found.append((path, f"[ _.-]{match[2]}[ _-]*[0-9]*[.]"))
        elif named and (not is_given or file.rpartition(".")[0] in others):
            found.append((path, f"(^|/){re.escape(named[-1])}/"))
    if found and 2 * len(found) >= num_alike:
        raise errors.UserError(
            f"{counted(len(found), 'file')}, such as {printable(found[0][0])}, are masks, labels "
            "or the like, which are not images of a class; leave them out with --exclude_regex "
            f"'{'|'.join(sorted({pattern for _, pattern in found}))}'"
        )


def _pairs(refs: pa.Table, layout: Sequence[str]) -> Iterator[_Pairs]:
    """Yields folders or words whose files have the same names."""
    for kind, sides in _sides(refs).items():
        is_folder = isinstance(kind, int)
        role = layout[kind] if isinstance(kind, int) and kind < len(layout) else "*"
        if role == "split" or not 2 <= len(sides) <= _MAX_NAMES:
            continue
        for names in itertools.combinations(sorted(sides), 2):
            known = [*zip(*(sides[name] for name in names), strict=True)]
            shares = [len(files.keys() & others.keys()) / (min(len(files), len(others)) or 1)
                      for files, others in known]  # fmt: skip
            form = shares.index(max(shares))
            share, (files, others) = shares[form], known[form]
            if share < _SAME:
                continue
            shared = sorted(files.keys() & others.keys())
            step = -(-len(shared) // _NUM_READ)
            pairs = [(files[key], others[key]) for key in shared[step // 2 :: step]]
            if pairs[0][0].split != pairs[0][1].split:
                continue
            stems = {key.rpartition("/")[2] for key in shared}
            is_sure = (
                is_folder and role != "patient" and not form
                and share >= _SAME_FOR_SURE and len(stems) >= _LEAST_FOR_SURE
                and not all(map(roles.says_nothing, names))
                and not _are_numbered(stems)
            )  # fmt: skip
            yield _Pairs(kind, names, pairs, is_sure)


def _sides(refs: pa.Table) -> Mapping[_Kind, dict[str, tuple[_Files, ...]]]:
    """Returns the files of each folder and each word in names, by kind.

    The files of a side are there three times: by their names; without what all names of their
    folder have in common, as `mask` of mask_7.png and `0000` of 7_0000.png; and without the folders
    below the side, as masks/7.png may be that of scans/CNV/7.png.
    """
    sides = collections.defaultdict(lambda: collections.defaultdict(lambda: ({}, {}, {})))
    folders = collections.defaultdict[str, list[tuple[str, ImageRef]]](list)
    for ref in iterate_refs(_some(refs)):
        folder, _, file = ref.path.rpartition("/")
        folders[folder].append((file, ref))
    for folder, files in folders.items():
        names, stems = folder.split("/") if folder else [], [_parts(file)[0] for file, _ in files]
        words = [_words(stem) for stem in stems]
        common = set.intersection(*map(set, words))
        for stem, some, (_, ref) in zip(stems, words, files, strict=True):
            short = "-".join(word for word in some if word not in common) or stem
            for depth, name in enumerate([*names, ""]):
                above, below = "/".join(names[:depth]), "/".join(names[depth + 1 :])
                side = sides[depth][name]
                for known, key in zip(
                    side, (f"{below}/{stem}", f"{below}/{short}", stem), strict=True
                ):
                    known[f"{above}//{key}"] = ref
        for kind in _DIVIDED:
            divided = [_divided(kind, *_parts(file)) for file, _ in files]
            counts = collections.Counter(name for name, _ in divided)
            for (name, key), (_, ref) in zip(divided, files, strict=True):
                if name[0] == "" or counts[name] > 1 or kind == "whole":
                    sides[kind]["".join(name)][0][f"{folder}/{key}"] = ref
    return sides


def _some(refs: pa.Table) -> pa.Table:
    """Returns about `_MAX_FILES` rows, with all files whose names have one of some numbers.

    A scan and its mask have their number in common: one that differs among the files.
    """
    every = -(-refs.num_rows // _MAX_FILES)
    if every == 1:
        return refs
    found = (pc.extract_regex(refs["path"], pattern).combine_chunks() for pattern in _NUMBERS)
    numbers = (pc.struct_field(some, "number").dictionary_encode() for some in found)
    best = max(numbers, key=lambda some: len(some.dictionary))
    codes = best.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return refs.filter(pa.array(codes % every == 0))


def _parts(file: str) -> tuple[str, str]:
    stem, dot, ending = file.rpartition(".")
    return (source_of(file, ()) or stem, dot + ending) if stem else (file, "")


def _words(stem: str) -> list[str]:
    found = re.findall(r"[^\W\d_]+|\d+", stem)
    return [word.lstrip("0") or "0" if word.isdecimal() else word for word in found]


def _divided(kind: str, stem: str, ending: str) -> tuple[tuple[str, str], str]:
    """Returns the word in a file's name with the ending behind it, and the rest of the name."""
    match, behind = _DIVIDED[kind].fullmatch(stem), "" if kind in _BEFORE else ending
    return ((match["word"], behind), match["rest"]) if match else (("", behind), stem)


def _are_numbered(names: Collection[str]) -> bool:
    """Returns whether names are letters, or alike but for numbers without large gaps.

    >>> _are_numbered(["img_1", "img_2", "img_4"]), _are_numbered(["7a3", "91c"])
    (True, False)
    """
    shapes = collections.defaultdict[str, list[list[int]]](list)
    for name in names:
        numbers = [int(number) for number in re.findall(r"\d+", name)]
        shapes["#" if len(name) == 1 else re.sub(r"\d+", "#", name)].append(numbers)
    columns = (set(some) for rows in shapes.values() for some in zip(*rows, strict=False))
    return 2 * len(shapes) <= len(names) and all(
        max(some) - min(some) < 2 * len(some) for some in columns
    )


def _look(reader: Reader, ref: ImageRef) -> _Look | None:
    """Returns what a picture, or the first frame of DICOM, looks like.

    None if it cannot be read, which the build will tell.
    """
    if ref.size > _LARGEST:
        return None
    try:
        data = reader.read(ref.member)
        if is_dicom(data):
            picture = read_frame(data, 1, Preprocessing()).image
        else:
            picture = read_picture(data).image
    except Exception:  # for damaged bytes, decoders raise almost anything
        return None
    values = np.asarray(picture)
    is_colour = False
    if values.ndim == 3:
        colours = values[..., :3].astype(np.int32)
        is_colour = bool(np.mean(np.ptp(colours, axis=-1) > 16) > 0.05)
        values = colours @ [1 << 16, 1 << 8, 1][: colours.shape[-1]]
    counts = np.sort(np.unique(values, return_counts=True)[1])[::-1]
    is_even = np.mean(values[:, 1:] == values[:, :-1]) if values.shape[1] > 1 else 0
    is_few = counts[:_FEW_LEVELS].sum() >= _FEW_SHARE * values.size or is_even >= _FEW_SHARE
    return _Look(
        size=picture.size,
        is_blank=len(counts) == 1,
        is_binary=bool(is_few) and len(counts) > 1 and values.size >= _FEWEST_PIXELS,
        is_colour=is_colour,
    )


def _are_drawn(looks: Collection[_Look]) -> bool:
    is_alike = all(look.is_binary or look.is_blank for look in looks)
    return len(looks) > 1 and is_alike and any(look.is_binary for look in looks)


def _drawn_side(looks: Sequence[tuple[_Look | None, ...]]) -> tuple[int, str] | None:
    """Returns which side of pairs is drawn, 0 or 1, and why; None if the pictures do not tell."""
    known = [pair for pair in looks if None not in pair]
    if len(known) < 2:
        return None
    for place in (1, 0):
        drawn, others = ([pair[k] for pair in known] for k in (place, 1 - place))
        plain = sum(not (other.is_binary or other.is_blank) for other in others)
        if _are_drawn(drawn) and 4 * plain >= 3 * len(known):
            return place, _BINARY
        is_coloured = all(one.is_colour for one in drawn) and not any(o.is_colour for o in others)
        if is_coloured and all(one.size == other.size for one, other in known):
            return place, "in colour and as large as the grey ones of the same names"
    return None


def _shown(kind: _Kind, name: str) -> str:
    if isinstance(kind, int):
        return f"the folder {printable(name)!r}" if name else "the folder itself"
    return f"names with {printable(name)!r}" if name else "the other names"


def _pattern(kind: _Kind, name: str) -> str:
    """Returns a pattern of the paths of one side; empty for files directly in a folder."""
    word = re.escape(name)
    if not name or isinstance(kind, int):
        return f"(^|/){word}/" if name else ""
    if kind in _BEFORE:
        return f"(^|/){word}[^/]*$"
    start = {"whole": "(^|/)", "number": "[ _.-]"}.get(kind, "[ _.0-9-]")
    return f"{'' if name.startswith('.') else start}{word}$"


def _error(
    found: Sequence[tuple[_Pairs, tuple[int, str] | None]], layout: Sequence[str], refs: pa.Table
) -> errors.UserError:
    drawn = [(some.kind, some.names[told[0]], told[1]) for some, told in found if told]
    some = next(some for some, told in found if told or not drawn)
    names = "; ".join(
        " and ".join(printable(ref.source_path) for ref in pair) for pair in some.files[:3]
    )
    why = f"; the pictures of {_shown(*drawn[0][:2])} are {drawn[0][2]}" if drawn else ""
    # All that is drawn at once; or else one or the other side.
    kind = some.kind
    unwanted = ["|".join(sorted({_pattern(kind, name) for _, name, _ in drawn}))]
    if not drawn:
        unwanted = [_pattern(kind, name) for name in some.names]
    flags = " or ".join(f"--exclude_regex '{pattern}'" for pattern in unwanted if pattern)
    labels = ",".join(sorted(refs["label"].unique().to_pylist()))
    keep = f"--layout '{'/'.join(layout)}'" if "class" in layout else f"--classes '{labels}'"
    first, second = (_shown(kind, name) for name in some.names)
    return errors.UserError(
        f"{first} and {second} hold pictures of the same names, such as {names}{why}. "
        + (f"Leave out one side with {flags}; or k" if flags else "K")
        + f"eep both with {keep}, if both are images of a class"
    )
