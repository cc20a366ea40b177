"""Splits without leaks, decided before any image is decoded.

>>> positions(hash_names(["patient:17", "patient:18"]), np.array([0], np.uint64)).round(2)
array([[0.02, 0.39]])

With `--splits patient`, a hash of the patient's name and a seed is a position from 0 to 1, as
above, and bounds at the wanted fractions turn it into a split. So images added later do not move a
patient to another split, and the fractions are met only by chance.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipelines import errors
from pipelines.listing.images import Images, Ledger, Note
from pipelines.listing.refs import OTHER, REF_SCHEMA, iterate_refs
from pipelines.sources.source import Member, Source, read_in_order
from tfrecord_io.decoding.rejects import Reject
from tfrecord_io.format.groups import INPUTS, Groups, group_images, plural_unit
from tfrecord_io.format.hashing import draw, hash_names
from tfrecord_io.format.kinds import CLASSES, LabelKind
from tfrecord_io.terminal.flags import check, flag
from tfrecord_io.terminal.printing import many

#: One row per image that a policy left out.
DROPPED_SCHEMA = pa.schema(
    [("path", pa.large_string()), ("reason", pa.string()), ("detail", pa.string())]
)

#: Limits of the search for a seed: the number of patients times seeds, about two seconds, and the
#: number of seeds. With a few thousand patients in four classes, about one seed in thousands meets
#: all fractions within one percentage point.
_MAX_PLACES = 50_000_000
_MAX_SEEDS = 10_000
_SEEDS_AT_ONCE = 20

#: Fractions of `--splits patient` unless the user gives others.
DEFAULT_FRACTIONS = (("train", 0.8), ("val", 0.1), ("test", 0.1))

#: The largest seed, of a split or a plan.
LARGEST_SEED = 2**63 - 1


def _fractions(text: str) -> tuple[tuple[str, float], ...]:
    pairs = (part.partition("=") for part in text.split(","))
    return tuple((name.strip(), float(share)) for name, _, share in pairs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """How the splits are made, and what happens to patients who are in several.

    Raises:
        ValueError: if a value is wrong, or two options contradict each other.
    """

    splits: Literal["source", "patient", "file", "auto"] = flag(
        "source",
        "source: keep the splits of the source's folders; patient: make new splits, with each "
        "patient in one split; file: also where no patient is known, with each file in one split; "
        "auto: patient where one is known, else file",
        choices=("source", "patient", "file", "auto"),
    )
    split_fractions: tuple[tuple[str, float], ...] | None = flag(
        None,
        "share of each split, for --splits patient (default: "
        + ",".join(f"{name}={share:g}" for name, share in DEFAULT_FRACTIONS)
        + ")",
        parse=_fractions,
        expected="shares like train=0.8,val=0.1,test=0.1",
        metavar="A=X,B=Y,...",
    )
    split_seed: int | None = flag(
        0,
        "decides, with the patient's name, which split a patient is in; auto searches for a seed "
        "that gives every class its share",
        parse=lambda text: None if text == "auto" else int(text),
        expected="a number or auto",
        least=0,
        most=LARGEST_SEED,
        metavar="N|auto",
    )
    keep_split: str | None = flag(
        None,
        "keep this split of the source as it is, and leave its patients out of the other splits",
        metavar="SPLIT",
    )
    leaks: Literal["keep", "drop", "fail"] = flag(
        "keep",
        "what to do with patients who are in several splits of the source: keep and report them, "
        "drop their images from the less protected split (test is protected most, then val), or "
        "fail",
        choices=("keep", "drop", "fail"),
    )

    def __post_init__(self) -> None:
        check(self)
        if self.splits == "source" and (self.split_fractions or self.split_seed != 0):
            raise ValueError("--split_fractions and --split_seed need --splits patient or file")
        if self.split_fractions is None:
            return
        names, shares = zip(*self.split_fractions, strict=True)
        are_names = all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names)
        are_shares = all(0 < share <= 1 for share in shares) and abs(sum(shares) - 1) <= 1e-6
        if not (are_names and are_shares) or len(set(names)) < len(names):
            raise ValueError(
                "--split_fractions takes each split once, in lower-case letters, digits and "
                "underscores, with shares that are positive and add up to 1, received "
                + ",".join(f"{name}={share:g}" for name, share in self.split_fractions)
            )

    def resolved(self, refs: pa.Table) -> SplitOptions:
        """Returns the options with `patient` or `file` in place of `auto`."""
        if self.splits != "auto":
            return self
        return dataclasses.replace(self, splits="patient" if _is_patient_known(refs) else "file")

    def identity(self, seed: int | None) -> dict[str, Any]:
        """Returns what decides the splits and the images that are dropped, by flag.

        `seed` is the one that made the splits, which `--split_seed auto` has found; else None.
        """
        return dataclasses.asdict(self) | {
            "split_fractions": dict(self.split_fractions) if self.split_fractions else None,
            "split_seed": self.split_seed if seed is None else seed,
            # `fail` writes the same bytes as `keep`, if the build succeeds.
            "leaks": "drop" if self.leaks == "drop" else "keep",
        }


def assign_splits(
    images: Images,
    options: SplitOptions,
    read_content: Callable[[pa.Table], Sequence[str]],
    label_kind: LabelKind = CLASSES,
) -> tuple[Images, pa.Table, list[str]]:
    """Decides every image's split and drops the images that the options exclude.

    Args:
        images: the images.
        options: what the user chose.
        read_content: returns a name for the content of each image's file, which is the same for
            copies of a file. Called only for new splits, for images of which neither patient nor
            study is known.
        label_kind: what an example's label can be.

    Returns:
        the images kept, in their order; the images left out, a table of `DROPPED_SCHEMA`; and what
        the user should know, one sentence each, which the ledger has too.

    Raises:
        errors.UserError: if the split to keep does not exist, a split would be empty, or the splits
            should be by patient and none is known.
        errors.RefusedError: if patients are in several splits and the policy is `fail`.
    """
    refs, notes, seed = images.table, list[str](), None
    present, kept = _split_names(refs), options.keep_split
    if kept is not None and kept not in present:
        raise errors.UserError(
            f"--keep_split {kept}: the source has no such split, it has {', '.join(present)}"
        )
    # Of each split, the others that must not share its patients.
    protected = {} if kept is None else {kept: [name for name in present if name != kept]}
    if options.leaks == "drop" and options.splits == "source":
        ranked = protected_first(present)
        for place, name in enumerate(ranked):
            protected.setdefault(name, ranked[place + 1 :])
    dropped = [DROPPED_SCHEMA.empty_table()]
    for name, others in protected.items():
        refs, left_out = _drop_shared_with(refs, name, others)
        dropped.append(left_out)
    if options.splits == "patient" and not _is_patient_known(refs):
        raise errors.UserError(_no_patient(refs["path"]))
    if options.splits != "source":
        refs, seed = _assign(refs, options, read_content, label_kind, notes)
    elif _split_names(refs) == ["train"]:
        notes.append(
            "every image is in the split train, because neither folders nor a column split name "
            "another: there is no test split; --splits patient makes one"
        )
    elif options.leaks == "fail":
        _require_no_leaks(refs)
    found = Ledger(notes=tuple(map(Note, notes)))
    return images.then(refs, found, split_seed=seed), pa.concat_tables(dropped), notes


def protected_first(names: Iterable[str]) -> list[str]:
    """Returns split names, the most protected first: test, val, others by name, train."""
    ranks = {"test": 0, "val": 1, "train": 3}
    return sorted(names, key=lambda name: (ranks.get(name, 2), name))


def positions(hashes: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Returns a position in [0, 1) for each group and seed, float64 [num_seeds, num_groups].

    A position is the upper 53 bits of `hashing.draw(hashes, seeds)`, divided by 2^53.
    """
    return (draw(hashes, seeds) >> np.uint64(11)).astype(np.float64) / 2.0**53


def _assign(
    refs: pa.Table,
    options: SplitOptions,
    read_content: Callable[[pa.Table], Sequence[str]],
    label_kind: LabelKind,
    notes: list[str],
) -> tuple[pa.Table, int]:
    """Returns the refs with the splits of `--splits patient`, and the seed that made them."""
    fractions = dict(options.split_fractions or DEFAULT_FRACTIONS)
    splits = refs["split"].cast(pa.string()).combine_chunks()
    free = pa.array(np.ones(refs.num_rows, bool))
    if options.keep_split is not None:
        free = pc.not_equal(splits, options.keep_split)
        fractions.pop(options.keep_split, None)
    candidates = refs.filter(free)
    if not (fractions and candidates.num_rows):
        raise errors.UserError(
            "--splits patient needs images, and a split in --split_fractions, besides --keep_split"
        )
    names = protected_first(fractions)
    shares = np.array([fractions[name] for name in names]) / sum(fractions.values())
    known = known_groups(candidates)
    unit = "file" if known.unit == "image" else known.unit
    groups = _with_content(known, candidates, read_content, notes).dictionary_encode()
    hashes = hash_names(groups.dictionary.to_pylist())
    members = groups.indices.to_numpy().astype(np.int64)
    counts = _counts_by_class(candidates, members, len(hashes), label_kind)
    seed = options.split_seed
    seed = _best_seed(hashes, counts, shares) if seed is None else seed
    places = positions(hashes, np.array([seed], np.uint64))[0]
    choice = np.searchsorted(np.cumsum(shares)[:-1], places, "right")
    achieved = np.stack([counts[choice == index].sum(0) for index in range(len(names))])
    seeds = options.split_seed, seed
    notes.append(_describe_balance(names, shares, achieved, len(hashes), unit, *seeds))
    chosen = pa.array(names).take(pa.array(choice[members]))
    column = pc.replace_with_mask(splits, free, chosen).dictionary_encode()
    place = REF_SCHEMA.get_field_index("split")
    return refs.set_column(place, "split", column).combine_chunks(), seed


def _with_content(
    groups: Groups,
    refs: pa.Table,
    read_content: Callable[[pa.Table], Sequence[str]],
    notes: list[str],
) -> pa.Array:
    """Returns the names of the images' groups, where those of files are of their content."""
    if groups.sources.keys() <= {"patient"}:
        return groups.names
    by = [plural_unit(name) for name in ("study", "series", "source") if name in groups.sources]
    lone = pc.match_substring_regex(groups.names, "^(file|image):")
    rows = refs.filter(lone)
    notes.append(
        f"{refs.num_rows - groups.sources.get('patient', 0):,} of {refs.num_rows:,} images have no "
        "patient: none in their names, in tags of DICOM or in a table of --labels; they are split "
        f"by {' and '.join([*by, *(['file'] if rows.num_rows else [])])}, so a patient can be in "
        "several splits. Give a pattern with --patient_regex, or a table of --labels with the "
        "column patient"
    )
    named = pa.array([f"content:{name}" for name in read_content(rows)], pa.large_string())
    return pc.replace_with_mask(groups.names, lone, named)


def content_names(source: Source, refs: pa.Table) -> list[str]:
    """Returns a name for the content of each image's file, which is the same for copies of it."""
    names: dict[Member, str] = {}
    # Each file is read once, whatever the number of its frames.
    members = list(dict.fromkeys(ref.member for ref in iterate_refs(refs)))
    with source.open() as reader:
        reads = ((member, functools.partial(reader.read, member)) for member in members)
        for member, read in zip(members, read_in_order(reader, reads), strict=True):
            try:
                names[member] = xxhash.xxh3_128_hexdigest(read())
            except Reject:
                # The decoder will reject it later; here its path serves as a unique name.
                names[member] = member.name
    return [names[ref.member] for ref in iterate_refs(refs)]


def _is_patient_known(refs: pa.Table) -> bool:
    """Returns whether a patient, a study or series, or the source of a copy is known of any."""
    return bool(known_groups(refs).sources.keys() - {"file", "image"})


def _no_patient(paths: pa.ChunkedArray) -> str:
    """Returns that no patient is known, and a pattern that would find some, if there is one."""
    text = (
        "--splits patient: no patient is known of any image, from names, folders, tags of DICOM or "
        "a table of --labels. "
    )
    if found := propose_pattern(paths.to_pylist()):
        text += f"--patient_regex '{found[0]}' would find {found[1]:,} patients, if they are that; "
    return text + (
        "--splits file makes splits in which a patient can be in several; or name the patients "
        "with --patient_regex, --layout or a column of --labels"
    )


def propose_pattern(paths: Sequence[str]) -> tuple[str, int] | None:
    r"""Returns a pattern of the number in most paths that could be the patient, and how many.

    >>> propose_pattern(["A/eye_17_1.png", "A/eye_17_2.png", "B/eye_8_1.png", "B/eye_8_2.png"])
    ('^[A-Za-z]+_(\\d+)_\\d+[.]', 2)
    """
    names = [path.rpartition("/")[2].rpartition(".")[0] for path in paths]
    shapes = collections.Counter(
        re.sub(r"[A-Za-z]+", "A", re.sub(r"\d+", "0", name)) for name in names
    )
    shape, count = shapes.most_common(1)[0]
    if 2 * count <= len(names) or shape == "0":  # a bare number is that of the image
        return None
    parts = {"A": "[A-Za-z]+", "0": r"\d+"}
    texts = [parts.get(char, re.escape(char)) for char in shape]
    best = None
    for place in (place for place, char in enumerate(shape) if char == "0"):
        pattern = "".join(["^", *texts[:place], r"(\d+)", *texts[place + 1 :], "[.]"])
        matches = (re.match(pattern, f"{name}.") for name in names)
        num = len({match[1] for match in matches if match})
        # Each patient has several images, and there is more than one.
        if 1 < num <= count / 2 and (best is None or num > best[1]):
            best = (pattern, num)
    return best


def known_groups(refs: pa.Table) -> Groups:
    """Returns which images belong together, as far as it is known before they are decoded."""
    present = [name for name in INPUTS if f"{OTHER}{name}" in refs.column_names]
    others = {name: refs[f"{OTHER}{name}"] for name in present}
    return group_images(pa.table({**others, "patient": refs["patient"], "path": refs["path"]}))


def _counts_by_class(
    refs: pa.Table, members: np.ndarray, num_groups: int, label_kind: LabelKind
) -> np.ndarray:
    """Returns int64 [num_groups, num_classes], the number of images; see `LabelKind.balance`."""
    labels = pc.dictionary_encode(refs["label"].cast(pa.string())).combine_chunks()
    texts, codes = label_kind.classes_of(labels.dictionary.to_pylist(), labels.indices.to_numpy())
    codes = members * len(texts) + codes
    counts = np.bincount(codes, minlength=num_groups * len(texts)).reshape(num_groups, len(texts))
    return label_kind.balance(counts, texts)


def _best_seed(hashes: np.ndarray, counts: np.ndarray, shares: np.ndarray) -> int:
    """Returns the seed with the smallest error of the share, taken at its worst class and split."""
    bounds = np.cumsum(shares)
    totals = np.maximum(counts.sum(0), 1)
    best_seed, best_error = 0, np.inf
    num_seeds = min(_MAX_SEEDS, max(_MAX_PLACES // len(hashes), _SEEDS_AT_ONCE))
    for start in range(0, num_seeds, _SEEDS_AT_ONCE):
        seeds = np.arange(start, start + _SEEDS_AT_ONCE, dtype=np.uint64)
        places = positions(hashes, seeds)
        # One matrix product per bound gives the cumulative counts; their differences follow.
        below = [(places < bound).astype(np.float64) @ counts for bound in bounds[:-1]]
        edges = np.stack([np.zeros_like(below[0]), *below, np.tile(totals, (len(seeds), 1))], 1)
        share = np.diff(edges, axis=1) / totals
        error = np.abs(share - shares[None, :, None]).max((1, 2))
        error += (share.sum(2) == 0).any(1)  # a split without an image is the worst
        if error.min() < best_error:
            best_seed, best_error = int(seeds[error.argmin()]), float(error.min())
    return best_seed


def _describe_balance(
    names: Sequence[str],
    shares: np.ndarray,
    achieved: np.ndarray,
    num_groups: int,
    unit: str,
    wanted_seed: int | None,
    seed: int,
) -> str:
    """Returns how well the splits meet their shares.

    Raises:
        errors.UserError: if a split has no image.
    """
    in_split = achieved.sum(1)
    rows = list(zip(names, shares, in_split / in_split.sum(), strict=True))
    if empty := [name for name, _, share in rows if share == 0]:
        wanted = ", ".join(f"{name}={share:.4g}" for name, share, _ in rows)
        few = many(num_groups, unit, plural_unit(unit))
        raise errors.UserError(
            f"{', '.join(empty)} would get no image: {few} too few for {wanted} with seed {seed}; "
            "choose other --split_fractions, or --split_seed auto"
        )
    parts = ", ".join(f"{name} {share:.1%} (wanted {wanted:.1%})" for name, wanted, share in rows)
    by_class = achieved / np.maximum(achieved.sum(0), 1)
    worst = np.abs(by_class - shares[:, None]).max()
    text = f"split by {unit} with seed {seed}: {parts}"
    if worst > 0.01:
        of_class = f"the share of a class is up to {100 * worst:.1f} points off"
        text += f"; {of_class}, because {plural_unit(unit)} stay whole"
    if wanted_seed is None:
        return f"{text}. Use --split_seed {seed} from now on, so that no patient changes split"
    advice = ". --split_seed auto finds a seed that comes closer" if worst > 0.01 else ""
    return text + advice


def _drop_shared_with(
    refs: pa.Table, kept: str, others: Sequence[str]
) -> tuple[pa.Table, pa.Table]:
    """Drops images of patients who are in split `kept` from the splits `others`.

    Returns:
        the images that are left, and the dropped ones as a table of `DROPPED_SCHEMA`.
    """
    splits, groups = refs["split"].cast(pa.string()), known_groups(refs).names
    shared = pc.and_(
        pc.is_in(splits, pa.array(others, pa.string())),
        pc.is_in(groups, groups.filter(pc.equal(splits, kept)).unique()),
    )
    left_out = refs.filter(shared)
    named = pc.replace_substring(groups.filter(shared), ":", " ", max_replacements=1)
    columns = {
        "path": [ref.image_name for ref in iterate_refs(left_out)],
        "reason": [f"patient_in_{kept}"] * left_out.num_rows,
        "detail": [f"{name} is in {kept} too" for name in named.to_pylist()],
    }
    return refs.filter(pc.invert(shared)), pa.table(columns, DROPPED_SCHEMA)


def _require_no_leaks(refs: pa.Table) -> None:
    """Raises `errors.RefusedError` if groups are in several splits."""
    pairs = pa.table({"group": known_groups(refs).names, "split": refs["split"].cast(pa.string())})
    splits = pairs.group_by("group").aggregate([("split", "distinct")])["split_distinct"]
    several = splits.filter(pc.greater(pc.list_value_length(splits), 1))
    leaks = collections.Counter(tuple(sorted(names)) for names in several.to_pylist())
    if not leaks:
        return
    parts = ", ".join(f"{count:,} in {' and '.join(key)}" for key, count in sorted(leaks.items()))
    raise errors.RefusedError(
        f"{many(leaks.total(), 'patient')} in several splits ({parts}), and --leaks is fail; "
        "use --leaks drop to leave their images out of the less protected split, or --splits "
        "patient to make new splits"
    )


def _split_names(refs: pa.Table) -> list[str]:
    return sorted(pc.unique(refs["split"].cast(pa.string())).to_pylist())
