"""The look at a tree: which level of its folders is the split, the class, the patient, or nothing.

The roles follow from the names of the folders and from how many images are below each.

>>> read({"P1/CNV/": 3, "P1/DME/": 2, "P2/CNV/": 4}, {})
('patient', 'class')
>>> read({"train/NORMAL/P1/": 3, "train/CNV/P2/": 2, "test/CNV/P3/": 4}, {})
('split', 'class', 'patient')
"""

from __future__ import annotations

import collections
import re
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from pipelines import errors
from tfrecord_io.format.person import Person
from tfrecord_io.format.schema import SPLITS
from tfrecord_io.terminal.printing import counted, listed, printable

#: What a level of folders can be; `*` means nothing.
ROLES = ("split", "class", "patient", "*")

# Other names of splits. A class may have the name of an abbreviation, such as TR.
_ABBREVIATIONS = {
    "tr": "train", "trn": "train", "va": "val", "vl": "val", "te": "test", "ts": "test",
    "tst": "test",
}  # fmt: skip
_SPLIT_WORDS = {**SPLITS, **_ABBREVIATIONS, "ttrain": "train", "ttest": "test"}

# Words that say nothing in the name of a split, such as Train_Data.
_FILLERS = "sets?|data|datasets?|images?|imgs?|splits?|folders?|files?|scans?|pictures?|photos?"
_GLUED = re.compile(f"({'|'.join(SPLITS)})({_FILLERS})")

_IMAGES = "images?|imgs?|pictures?|photos?|scans?|jpe?gs?|pngs?|tiffs?|bmps?|dicoms?|dcms?|data"
_MASKS = (
    r"masks?|labels?|annotations?|annots?|ground[ _-]?truths?|gt|segmentations?|segs?|overlays?"
    r"|thumbnails?|thumbs?|contours?|\d(st|nd|rd)[ _-]?(manual|ho)|manual[ _-]?\d*"
)
_KIND_OF_FILE = re.compile(f"{_IMAGES}|raw|originals?|{_MASKS}", re.IGNORECASE)

#: Names of folders of masks. `MASK_FILE` finds a mask by its file name, as in X_mask.png, where
#: group 1 is the name of its image; `MASK_PATH` by its file name or folder. Arrow (RE2) reads both.
MASK_FOLDER = re.compile(_MASKS, re.IGNORECASE)
MASK_FILE = rf"(?i)(?:^|/)([^/]+?)[ _.-]+({_MASKS})[ _-]*\d*\.[^./]*$"
MASK_PATH = rf"{MASK_FILE}|(?i)(?:^|/)(?:{_MASKS})/"

# Levels that are neither class nor patient: sides, magnifications, visits, dates, hospitals.
_NOTHING = re.compile(
    r"left|right|l|r|od|os|ou|lt|rt|\d+x|\d{4}[-_.]\d\d[-_.]\d\d"
    r"|(session|batch|fold|part|series|study|visit|slice|week|day|month|time|cam(era)?|run|set)"
    r"[ _-]*\w?\d*"
    r"|(scanner|device|machine|vendor)[ _-]*\w?\d*",
    re.IGNORECASE,
)
# Hospitals, each of which numbers its patients.
_SITE = re.compile(r"(hosp(ital)?|site|cent(er|re)|clinic)[ _-]*\w?\d*", re.IGNORECASE)
_PATIENT = re.compile(
    r"(patient|pat|pt|p|cases?|subject|subj|sub|person|pid|mrn|id)[ _.-]*#", re.IGNORECASE
)
_CLASS = re.compile(
    r"(class|cls|c|grade|stage|level|type|group|category|kl|dr|birads|bi-rads|score|label)"
    r"[ _.-]*#", re.IGNORECASE
)  # fmt: skip

# Words that only classes are called by.
_TELLING = re.compile(
    r"\b(normal|healthy|benign|malignant|positive|negative|abnormal|controls?|cnv|dme|drusen|amd"
    r"|covid|pneumonia|tumou?r|cancer|glaucoma|cataract|yes|no)\b", re.IGNORECASE
)  # fmt: skip

#: With more classes than this, or folders of unknown meaning, each needs several images.
MANY_CLASSES, FEW_IMAGES = 20, 2

# So many names of a level are shown.
_SHOWN = 6

# The largest share of names that do not look like the others of their level.
_ODD = 0.1


def split_names(folders: Iterable[str]) -> dict[str, str]:
    """Returns the split of each folder name that is a split in this tree, in any spelling.

    The names in `SPLITS` always are. Another one, such as Train_Data or seg_train, is one if beside
    it another split has a name of the same kind.

    >>> split_names(["oct/train_set/", "oct/Test-Set/", "oct/trains/"])
    {'train_set': 'train', 'Test-Set': 'test'}
    """
    children = collections.defaultdict[str, dict[str, None]](dict)
    for folder in folders:
        parts = folder.split("/")[:-1]
        for depth, name in enumerate(parts):
            children["/".join(parts[:depth])][name] = None
    found = {}
    for names in children.values():
        told = {name: _split_word(name) for name in names}
        alike = collections.defaultdict(dict)
        for name, (word, others) in told.items():
            if name.lower() in SPLITS:
                found[name] = SPLITS[name.lower()]
            if word and (word not in _ABBREVIATIONS or all(w for w, _ in told.values())):
                alike[others][name] = _SPLIT_WORDS[word]
        for splits in alike.values():
            if len(set(splits.values())) > 1:
                found |= splits
    return found


def split_named(folder: str, splits: Mapping[str, str]) -> str | None:
    """Returns the split of a folder's name; `splits` is what `split_names` returns."""
    return splits.get(folder) or SPLITS.get(folder.lower())


def _split_word(name: str) -> tuple[str | None, tuple[str, ...]]:
    """Returns the word in a folder's name that names a split, if one does, and the other words."""
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    words = [match[1] if (match := _GLUED.fullmatch(word)) else word for word in words]
    words = [word for word in words if not re.fullmatch(_FILLERS, word)]
    found = [word for word in words if word in _SPLIT_WORDS]
    if len(found) != 1 or (found[0] in _ABBREVIATIONS and len(words) > 1):
        return None, ()
    return found[0], tuple(word for word in words if word != found[0])


def read(
    folders: Mapping[str, int],
    splits: Mapping[str, str],
    classes: Collection[str] = (),
    *,
    need_class: bool = True,
    above: str = "",
) -> tuple[str, ...]:
    """Returns the role of each level of folders, the outermost first.

    Args:
        folders: the number of images directly in each folder, whose path begins at the first level
            and ends with `/`.
        splits: what `split_names` returns.
        classes: names that decide for the level that has them.
        need_class: whether a level must be the class.
        above: the folder that holds all others, which is another reading if these are patients.

    Raises:
        errors.UserError: if no level is the class, or several could be; with the readings that are
            possible, and the flag for each.
    """
    levels = _names_of_levels(folders)
    # Every image is in so many folders; deeper levels are not the class.
    depth = min((folder.count("/") for folder, count in folders.items() if count), default=0)
    roles = ["*"] * len(levels)
    for place, names in enumerate(levels[:depth]):
        known = {split_named(name, splits) for name in names}
        if None not in known and (place == 0 or len(known) > 1):
            roles[place] = "split"
            break
    meanings = {place: _meaning(levels[place]) for place in range(depth) if roles[place] == "*"}
    could_be = _classes_among(levels, meanings, set(classes))
    example = min((folder for folder, count in folders.items() if count), default="")
    if need_class and len(could_be) != 1:
        readings = [(levels, some) for some in _readings(levels, roles, meanings, could_be)]
        is_known = all(meaning in ("file", "nothing") for meaning in meanings.values())
        if above and not could_be and (roles == ["split"] or (roles == ["*"] and not is_known)):
            inner = "split" if roles == ["split"] else "patient"
            readings.append(([{above: sum(folders.values())}, *levels], ["class", inner]))
        why = "no level of the folders has the names of classes"
        if could_be:
            why = "it is not clear which folders are the classes"
        _refuse(why, example, readings)
    if need_class:
        roles[could_be[0]] = "class"
    for place, names in enumerate(levels):
        meaning = meanings.get(place) if place < depth else _meaning(names)
        is_sure = meaning == "patient"
        if roles[place] != "*" or not (is_sure or (place < depth and meaning in _MAYBE_PATIENT)):
            continue
        with_patient = [*roles[:place], "patient", *roles[place + 1 :]]
        is_odd = meaning == "numbers" or (need_class and _is_grid(folders, could_be[0], place))
        if need_class and is_odd and not is_sure:
            why = f"it is not clear whether the folders {shown(names, 4)} are patients"
            _refuse(why, example, [(levels, with_patient), (levels, roles)])
        if is_sure or not is_odd:
            roles = with_patient
            break
    return _trimmed(roles)


def _trimmed(roles: Sequence[str]) -> tuple[str, ...]:
    """Returns roles without the innermost levels that mean nothing."""
    return tuple("/".join(roles).rstrip("/*").split("/")) if {*roles} - {"*"} else ()


# Meanings of levels that can be patients, if another level is the class.
_MAYBE_PATIENT = ("numbered", "many", "numbers")


def _meaning(names: Mapping[str, int]) -> str:
    """Returns what the names of a level are, by the number of images below each.

    One of `file` (kinds of files), `nothing`, `class`, `patient`, `numbers` (from 0 or 1 on),
    `numbered` (alike but for their numbers), `mixed` (several words, each with several numbers) and
    `many` (different names with few images each).
    """
    allowed = _ODD * len(names)
    if all(_KIND_OF_FILE.fullmatch(name) for name in names):
        return "file"
    if all(map(says_nothing, names)):
        return "nothing"
    shapes = [re.sub(r"\d+", "#", name) for name in names]
    kinds = len(set(shapes))
    if sum("#" not in shape for shape in shapes) <= allowed and kinds <= max(1, allowed):
        for meaning, pattern in (("patient", _PATIENT), ("class", _CLASS)):
            if sum(not pattern.match(shape) for shape in shapes) <= allowed:
                return meaning
        values = sorted(int(name) for name in names if name.isdecimal())
        if values in ([*range(len(names))], [*range(1, len(names) + 1)]) and len(names) <= 11:
            return "numbers"
        if len(names) > 1:
            return "numbered"
    if len(names) > 1 and sum(not _is_code(name) for name in names) <= allowed:
        return "numbered"
    # As AMD1, AMD2, DME1 and DME2: the patients of each class.
    if sum(count > 1 for shape, count in collections.Counter(shapes).items() if "#" in shape) > 1:
        return "mixed"
    few = len(names) <= MANY_CLASSES or statistics.median(names.values()) >= MANY_CLASSES
    return "class" if few else "many"


def says_nothing(name: str) -> bool:
    """Returns whether a name is that of a side, a magnification, a visit, a date or a hospital."""
    return any(pattern.fullmatch(name) for pattern in (_NOTHING, _SITE))


def _is_code(name: str) -> bool:
    """Returns whether a name is that of a thing with a number, such as a UID or a hash."""
    digits = sum(map(str.isdigit, name))
    is_hexadecimal = re.fullmatch(r"(?i)[0-9a-f-]{6,}", name) is not None
    return 2 * digits >= len(name) or bool(digits and is_hexadecimal)


def _classes_among(
    levels: Sequence[Mapping[str, int]], meanings: Mapping[int, str], chosen: set[str]
) -> list[int]:
    """Returns the levels that could be the class."""
    if chosen:
        having = [place for place in meanings if chosen <= levels[place].keys()]
        return (having or list(meanings))[:1]
    could_be = [place for place in meanings if meanings[place] in ("class", "numbers")]
    if len(meanings) == 1 and "many" in meanings.values():
        could_be = list(meanings)
    told = [place for place in meanings if tell(levels[place])]
    if any(meanings[place] == "mixed" for place in told):  # as study1_positive
        return []
    told = [place for place in told if place in could_be]
    several = [place for place in could_be if len(levels[place]) > 1] or could_be
    if told and not set(told) & set(several):  # as in smith/NORMAL and jones/NORMAL
        return sorted({*told, *several})
    told = [place for place in told if place in several]
    if not told and len(several) == 1 == len(levels[several[0]]):
        # A single folder is not a class if its name says what kind of files it has: CXR_png.
        words = re.findall("[A-Z]?[a-z]+|[A-Z]+s?(?![a-z])", *levels[several[0]])
        if any(map(_KIND_OF_FILE.fullmatch, words)):
            return []
    return told if len(told) == 1 else several


def _is_grid(folders: Mapping[str, int], outer: int, inner: int) -> bool:
    """Returns whether a few names of a level are with several names of another one each."""
    pairs = {(parts[outer], parts[inner]) for folder in folders
             if len(parts := folder.split("/")[:-1]) > max(outer, inner)}  # fmt: skip
    counts = collections.Counter(name for _, name in pairs)
    return len(counts) <= MANY_CLASSES and 2 * counts.total() >= 3 * len(counts)


def _names_of_levels(folders: Mapping[str, int]) -> list[collections.Counter[str]]:
    """Returns the names of each level of folders, with the number of images below each."""
    levels = collections.defaultdict[int, collections.Counter[str]](collections.Counter)
    for folder, count in folders.items():
        for place, name in enumerate(folder.split("/")[:-1] if count else ()):
            levels[place][name] += count
    return list(levels.values())


def tell(names: Iterable[str]) -> bool:
    """Returns whether one of some names is one that only classes have."""
    return _TELLING.search(" ".join(names).replace("_", " ")) is not None


def is_no_class(name: str) -> bool:
    """Returns whether a name is that of a split or a kind of file."""
    return name.lower() in SPLITS or _KIND_OF_FILE.fullmatch(name) is not None


def _readings(
    levels: Sequence[Mapping[str, int]],
    roles: Sequence[str],
    meanings: Mapping[int, str],
    could_be: Sequence[int],
) -> Iterator[list[str]]:
    """Yields the roles that the levels could have, if the class is not clear."""
    only = [place for place in meanings if meanings[place] not in ("file", "nothing")]
    for place in could_be or only or [p for p in meanings if meanings[p] == "nothing"]:
        others = [other for other in meanings if other != place]
        patients = [p for p in others if meanings[p] in ("patient", *_MAYBE_PATIENT)]
        # As in smith/NORMAL, jones/NORMAL: one class below the names of people.
        people = [p for p in others if p < place and len(levels[p]) > len(levels[place]) == 1]
        for patient in patients[:1] or [None, *people[:1]]:
            named = {place: "class", patient: "patient"}
            yield [named.get(k, role) for k, role in enumerate(roles)]


def _refuse(
    why: str, example: str, readings: Iterable[tuple[Sequence[Mapping[str, int]], Sequence[str]]]
) -> NoReturn:
    """Raises an error with the names of levels and their roles, and the flag for each reading."""
    lines = []
    for levels, roles in readings:
        told = "; ".join(
            f"{counted(len(names), role, {'class': 'classes'}.get(role))}: {shown(names, 4)}"
            for role, names in zip(roles, levels, strict=False)
            if role != "*"
        )
        lines.append(f"\n  --layout '{'/'.join(_trimmed(roles))}' reads {told}")
    table = "give a table of labels (--labels) or a pattern of the class (--label_regex)"
    choices = f"Choose how to read them, or {table}:{''.join(lines)}"
    raise errors.UserError(
        f"{why}, in paths such as {printable(example)}. "
        + (choices if lines else table[:1].upper() + table[1:])
    )


def shown(names: Iterable[str], most: int = 5) -> str:
    """Returns some names for a message, sorted, and how many more there are."""
    return listed([printable(name) for name in sorted(names)], most)


def facts(
    layout: Sequence[str], folder: str, splits: Mapping[str, str]
) -> tuple[str, str | None, str | None]:
    """Returns the split, class and patient of a folder, whose path ends with `/`, by its layout.

    >>> facts(("*", "patient", "*", "class"), "hosp2/P7/left/CNV/", {})
    ('train', 'CNV', 'hosp2/P7')

    Raises:
        errors.UserError: if its name cannot be that of a split.
    """
    names = folder.split("/")[:-1]
    parts = dict(zip(layout, names, strict=False))
    name = parts.get("split", "train")
    split = split_named(name, splits) or re.sub(r"\W+", "_", name.lower())
    if not re.fullmatch("[a-z][a-z0-9_]*", split):
        raise errors.UserError(
            f"--layout {'/'.join(layout)}: the split {printable(name)!r} should be train, val, "
            "test or another name of letters, digits and underscores"
        )
    if "patient" not in parts:
        return split, parts.get("class"), None
    # Patient 17 of one hospital and patient 17 of another are two patients.
    patient = parts["patient"]
    for site in filter(_SITE.fullmatch, names[: layout.index("patient")][::-1]):
        patient = str(Person(site, patient))
    return split, parts.get("class"), patient


def table(
    folders: Mapping[str, int], layout: Sequence[str], splits: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Returns a row for each level of a layout: its role; its names and their images."""
    patients = collections.Counter[str]()
    for folder, count in folders.items() if "patient" in layout else ():
        patients[facts(layout, folder, splits)[2] or ""] += count
    levels = zip(layout, _names_of_levels(folders), strict=False)
    return [(role, told(patients if role == "patient" else names)) for role, names in levels]


def told(names: Mapping[str, int]) -> str:
    """Returns the number of names, and the most frequent ones with their numbers of images."""
    ranked = sorted((-count, name) for name, count in names.items() if count)
    few = [f"{printable(name)} {-count:,}" for count, name in ranked]
    return f"{len(ranked):,}: {listed(few, _SHOWN)}"
