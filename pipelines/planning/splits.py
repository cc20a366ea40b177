"""Splits without leaks, decided before any image is decoded.

With `--splits patient`, a hash of the patient's name and a seed decides, see `chosen_splits`. So
images added later do not move a patient to another split.
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
from pipelines.listing.images import Images, Ledger
from pipelines.listing.refs import OTHER, REF_SCHEMA, iterate_refs
from pipelines.sources.source import Member, Source, read_in_order
from tfrecord_io.decoding.rejects import Reject
from tfrecord_io.format.groups import INPUTS, Groups, group_images, plural_unit
from tfrecord_io.format.hashing import draw
from tfrecord_io.terminal.flags import check, flag
from tfrecord_io.terminal.printing import many

#: One row per image that a policy left out.
DROPPED_SCHEMA = pa.schema(
    [("path", pa.large_string()), ("reason", pa.string()), ("detail", pa.string())]
)

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
    split_seed: int = flag(
        0,
        "decides, with the patient's name, which split a patient is in",
        least=0,
        most=LARGEST_SEED,
        metavar="N",
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
        names, shares = zip(*self.split_fractions or DEFAULT_FRACTIONS, strict=True)
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

    def identity(self) -> dict[str, Any]:
        """Returns what decides the splits and the images that are dropped, by flag."""
        return dataclasses.asdict(self) | {
            "split_fractions": dict(self.split_fractions) if self.split_fractions else None,
            # `fail` writes the same bytes as `keep`, if the build succeeds.
            "leaks": "drop" if self.leaks == "drop" else "keep",
        }


def assign_splits(
    images: Images,
    options: SplitOptions,
    read_content: Callable[[pa.Table], Sequence[str]],
) -> tuple[Images, pa.Table, list[str]]:
    """Decides every image's split and drops the images that the options exclude.

    `read_content` returns a name for the content of each image's file, see `content_names`. It is
    called only for new splits, for images of which neither patient nor study is known.

    Returns:
        the images kept, in their order; the images left out, a table of `DROPPED_SCHEMA`; and what
        the user should know, one sentence each, which the ledger has too.

    Raises:
        errors.UserError: if the split to keep does not exist, a split would be empty, or the splits
            should be by patient and none is known.
        errors.RefusedError: if patients are in several splits and the policy is `fail`.
    """
    refs, notes = images.table, list[str]()
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
        raise errors.UserError(
            "--splits patient: no patient is known of any image; name the patients with "
            "--patient_regex, --layout or a column of --labels, or use --splits file, which makes "
            "splits in which a patient can be in several"
        )
    if options.splits != "source":
        refs = _assign(refs, options, read_content, notes)
    elif _split_names(refs) == ["train"]:
        notes.append(
            "every image is in the split train, because neither folders nor a column split name "
            "another: there is no test split; --splits patient makes one"
        )
    elif options.leaks == "fail":
        _require_no_leaks(refs)
    found = Ledger(notes=tuple(notes))
    return images.then(refs, found), pa.concat_tables(dropped), notes


def protected_first(names: Iterable[str]) -> list[str]:
    """Returns split names, the most protected first: test, val, others by name, train."""
    ranks = {"test": 0, "val": 1, "train": 3}
    return sorted(names, key=lambda name: (ranks.get(name, 2), name))


def _assign(
    refs: pa.Table,
    options: SplitOptions,
    read_content: Callable[[pa.Table], Sequence[str]],
    notes: list[str],
) -> pa.Table:
    """Returns the refs with the splits of `--splits patient`, and notes how large they are."""
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
    names, seed = protected_first(fractions), options.split_seed
    wanted = np.array([fractions[name] for name in names]) / sum(fractions.values())
    known = known_groups(candidates)
    unit = "file" if known.unit == "image" else known.unit
    groups = _with_content(known, candidates, read_content, notes).dictionary_encode()
    of_group = chosen_splits(groups.dictionary.to_pylist(), wanted, seed)
    of_image = of_group[groups.indices.to_numpy()]
    shares = np.bincount(of_image, minlength=len(names)) / len(of_image)
    rows = list(zip(names, wanted, shares, strict=True))
    if empty := [name for name, _, share in rows if not share]:
        few = many(len(of_group), unit, plural_unit(unit))
        raise errors.UserError(
            f"{', '.join(empty)} would get no image: {few} too few for "
            f"{', '.join(f'{name}={share:.4g}' for name, share, _ in rows)} with seed {seed}; "
            "choose other --split_fractions or another --split_seed"
        )
    parts = ", ".join(f"{name} {share:.1%} (wanted {aim:.1%})" for name, aim, share in rows)
    notes.append(f"split by {unit} with seed {seed}: {parts}")
    column = pc.replace_with_mask(splits, free, pa.array(names).take(pa.array(of_image)))
    place = REF_SCHEMA.get_field_index("split")
    return refs.set_column(place, "split", column.dictionary_encode()).combine_chunks()


def chosen_splits(names: Sequence[str], shares: np.ndarray, seed: int) -> np.ndarray:
    """Returns the number of each group's split, int64 [num_groups], by the groups' names.

    A hash of name and seed gives a group its place in [0, 1), and the sums of the shares divide it:

    >>> chosen_splits(["patient:17", "patient:18"], np.array([0.1, 0.9]), 0)
    array([0, 1])
    """
    places = (draw(names, seed) >> np.uint64(11)).astype(np.float64) / 2.0**53
    return np.searchsorted(np.cumsum(shares)[:-1], places, "right")


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


def known_groups(refs: pa.Table) -> Groups:
    """Returns which images belong together, as far as it is known before they are decoded."""
    present = [name for name in INPUTS if f"{OTHER}{name}" in refs.column_names]
    others = {name: refs[f"{OTHER}{name}"] for name in present}
    return group_images(pa.table({**others, "patient": refs["patient"], "path": refs["path"]}))


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
