"""Splits without leaks, decided before any image is decoded.

>>> positions(hash_names(["patient:17", "patient:18"]), np.array([0], np.uint64)).round(2)
array([[0.02, 0.39]])

`--splits source` keeps the split that `listing.layout` took from the folder or the table; `--leaks`
and `--keep_split` are applied to it here. `--splits patient` gives each patient a split, which
depends only on the patient's name and a seed: a hash turns them into a position from 0 to 1, as
above, and bounds at the wanted fractions turn the position into a split. So images added later do
not move a patient to another split, and the fractions are met only by chance, over all images and
in each class. `--split_seed auto` tries many seeds, chooses the one that comes closest in every
class, and prints it, so that later builds can use the same seed.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipelines import errors
from pipelines.listing.refs import REF_SCHEMA, other_columns, source_paths
from pipelines.planning.options import DEFAULT_FRACTIONS, SplitOptions
from tfrecord_io.auditing.findings import many
from tfrecord_io.decoding.preprocess import frame_path
from tfrecord_io.groups import INPUTS, Groups, group_images, plural_unit
from tfrecord_io.kinds.classes import CLASSES
from tfrecord_io.kinds.label_kind import LabelKind
from tfrecord_io.reading.order import splitmix64

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitResult:
    """Images with their final split.

    Attributes:
        refs: the images kept, a table of `REF_SCHEMA` in the original order.
        dropped: the images left out, a table of `DROPPED_SCHEMA`.
        notes: what the user should know, one sentence each.
    """

    refs: pa.Table
    dropped: pa.Table
    notes: tuple[str, ...]


def apply(
    refs: pa.Table,
    options: SplitOptions,
    read_content: Callable[[pa.Table], Sequence[str]] | None = None,
    label_kind: LabelKind = CLASSES,
) -> SplitResult:
    """Decides every image's split and drops the images that the options exclude.

    Args:
        refs: the images, a table of `REF_SCHEMA`.
        options: what the user chose.
        read_content: returns a name for the content of each image's file, which is the same for
            copies of a file. Called only with `patient`, for images of which neither patient nor
            study is known; without it each file is a group by itself.
        label_kind: what an example's label can be.

    Raises:
        errors.UserError: if the split to keep does not exist, or a split would be empty.
        errors.RefusedError: if patients are in several splits and the policy is `fail`.
    """
    dropped = [DROPPED_SCHEMA.empty_table()]
    notes: list[str] = []
    if options.keep_split is not None:
        refs, left_out = _drop_shared_with(refs, options.keep_split)
        dropped.append(left_out)
    if options.splits == "patient":
        refs = _assign(refs, options, read_content, label_kind, notes)
    elif _split_names(refs) == ["train"]:
        notes.append(
            "every image is in the split train, because neither folders nor a column split name "
            "another: there is no test split; --splits patient makes one"
        )
    elif options.leaks == "fail":
        _require_no_leaks(refs)
    elif options.leaks == "drop":
        for protected in protected_first(_split_names(refs)):
            refs, left_out = _drop_shared_with(refs, protected, less_protected_only=True)
            dropped.append(left_out)
    return SplitResult(refs=refs, dropped=pa.concat_tables(dropped), notes=tuple(notes))


def protected_first(names: Sequence[str]) -> list[str]:
    """Returns split names, the most protected first: test, val, others by name, train."""
    ranks = {"test": 0, "val": 1, "train": 3}
    return sorted(names, key=lambda name: (ranks.get(name, 2), name))


def hash_names(groups: Sequence[str]) -> np.ndarray:
    """Returns uint64 [num_groups], the XXH3-64 of the UTF-8 name of each group."""
    names = (group.encode("utf-8", "surrogateescape") for group in groups)
    return np.fromiter((xxhash.xxh3_64_intdigest(name) for name in names), np.uint64)


def positions(hashes: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Returns a position in [0, 1) for each group and seed.

    It is the upper 53 bits of the group's hash, mixed with the seed by SplitMix64.

    Args:
        hashes: uint64 [num_groups], see `hash_names`.
        seeds: uint64 [num_seeds].

    Returns:
        float64 [num_seeds, num_groups].
    """
    with np.errstate(over="ignore"):
        mixed = splitmix64(hashes[None, :] + splitmix64(seeds)[:, None])
    return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53


def _assign(
    refs: pa.Table,
    options: SplitOptions,
    read_content: Callable[[pa.Table], Sequence[str]] | None,
    label_kind: LabelKind,
    notes: list[str],
) -> pa.Table:
    """Returns the refs with the splits of `--splits patient`."""
    fractions = dict(options.split_fractions or DEFAULT_FRACTIONS)
    splits = refs["split"].cast(pa.string()).combine_chunks()
    free = pa.array(np.ones(refs.num_rows, bool))
    if options.keep_split is not None:
        free = pc.not_equal(splits, options.keep_split)
        fractions.pop(options.keep_split, None)
    if not fractions:
        raise errors.UserError("--split_fractions must name a split other than --keep_split")
    candidates = refs.filter(free)
    if not candidates.num_rows:
        raise errors.UserError("--splits patient finds no image to divide: each keeps its split")
    groups = _groups(candidates, read_content, notes)
    names = protected_first(list(fractions))
    shares = np.array([fractions[name] for name in names]) / sum(fractions.values())
    bounds = np.cumsum(shares)[:-1]
    encoded = groups.dictionary_encode()
    hashes = hash_names(encoded.dictionary.to_pylist())
    members = encoded.indices.to_numpy().astype(np.int64)
    counts = _counts_by_class(candidates, members, len(hashes), label_kind)
    seed = options.split_seed
    if seed is None:
        seed = _best_seed(hashes, counts, shares)
    choice = np.searchsorted(bounds, positions(hashes, np.array([seed], np.uint64))[0], "right")
    achieved = np.stack([counts[choice == index].sum(0) for index in range(len(names))])
    searched = options.split_seed is None
    _check_not_empty(names, shares, achieved, len(hashes), searched)
    notes.append(_describe_balance(names, shares, achieved, seed, searched))
    chosen = pa.array(names).take(pa.array(choice[members]))
    column = pc.replace_with_mask(splits, free, chosen)
    index, field = REF_SCHEMA.get_field_index("split"), REF_SCHEMA.field("split")
    column = column.dictionary_encode().cast(field.type)
    return refs.set_column(index, field, column).combine_chunks()


def _groups(
    refs: pa.Table,
    read_content: Callable[[pa.Table], Sequence[str]] | None,
    notes: list[str],
) -> pa.Array:
    """Returns the name of each image's group; of files, that of their content."""
    groups = known_groups(refs)
    if groups.sources.keys() <= {"patient"}:
        return groups.names
    by = [plural_unit(name) for name in ("study", "series") if name in groups.sources]
    lone = pc.match_substring_regex(groups.names, "^(file|image):")
    rows = refs.filter(lone)
    notes.append(
        f"{refs.num_rows - groups.sources.get('patient', 0):,} of {refs.num_rows:,} images have no "
        "patient: none in their names, in tags of DICOM or in a table of --labels; they are split "
        f"by {' and '.join([*by, *(['file'] if rows.num_rows else [])])}, so a patient can be in "
        "several splits. Give a pattern with --group_regex, or a table of --labels with the column "
        "patient"
    )
    contents = read_content(rows) if read_content else rows["path"].to_pylist()
    named = pa.array([f"content:{name}" for name in contents], pa.large_string())
    return pc.replace_with_mask(groups.names, lone, named)


def known_groups(refs: pa.Table) -> Groups:
    """Returns which images belong together, as far as it is known before they are decoded."""
    columns = {"patient": refs["patient"], "path": refs["path"]}
    others = {name: values for name, values in other_columns(refs).items() if name in INPUTS}
    return group_images(pa.table(others | columns))


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


def _check_not_empty(
    names: Sequence[str], shares: np.ndarray, achieved: np.ndarray, num_groups: int, searched: bool
) -> None:
    empty = [name for name, count in zip(names, achieved.sum(1), strict=True) if count == 0]
    if empty:
        wanted = ", ".join(f"{n}={s:g}" for n, s in zip(names, shares.round(4), strict=True))
        raise errors.UserError(
            f"{', '.join(empty)} would get no image: {many(num_groups, 'patient')} too few for "
            f"{wanted} with {'any seed' if searched else 'this seed'}; choose other "
            f"--split_fractions{'' if searched else ', or --split_seed auto'}"
        )


def _describe_balance(
    names: Sequence[str], shares: np.ndarray, achieved: np.ndarray, seed: int, searched: bool
) -> str:
    total = achieved.sum()
    parts = ", ".join(
        f"{name} {count / total:.1%} (wanted {share:.1%})"
        for name, count, share in zip(names, achieved.sum(1), shares, strict=True)
    )
    by_class = achieved / np.maximum(achieved.sum(0), 1)
    worst = np.abs(by_class - shares[:, None]).max()
    text = f"split by patient with seed {seed}: {parts}; off by at most {worst:.1%} in each class"
    if searched:
        return f"{text}. Use --split_seed {seed} from now on, so that no patient changes split"
    if worst > 0.01:
        return f"{text}. --split_seed auto searches for a seed that comes closer"
    return text


def _drop_shared_with(
    refs: pa.Table, kept: str, less_protected_only: bool = False
) -> tuple[pa.Table, pa.Table]:
    """Drops images of patients who are in split `kept` from the other, or less protected, splits.

    Returns:
        the images that are left, and the dropped ones as a table of `DROPPED_SCHEMA`.
    """
    there = _split_names(refs)
    if kept not in there:
        raise errors.UserError(
            f"--keep_split {kept}: the source has no such split, it has {', '.join(there)}"
        )
    splits = refs["split"].cast(pa.string())
    others = pc.not_equal(splits, kept)
    if less_protected_only:
        order = protected_first(there)
        others = pc.is_in(splits, pa.array(order[order.index(kept) + 1 :], pa.string()))
    groups = known_groups(refs).names
    shared = pc.and_(others, pc.is_in(groups, groups.filter(pc.equal(splits, kept)).unique()))
    left_out = refs.filter(shared)
    named = pc.replace_substring(groups.filter(shared), ":", " ", max_replacements=1)
    details = pc.binary_join_element_wise(named.cast(pa.string()), f"is in {kept} too", " ")
    names = map(frame_path, source_paths(left_out).to_pylist(), left_out["frame"].to_pylist())
    table = pa.table(
        {
            "path": pa.array(names, pa.large_string()),
            "reason": pa.array([f"patient_in_{kept}"] * left_out.num_rows, pa.string()),
            "detail": details,
        },
        DROPPED_SCHEMA,
    )
    return refs.filter(pc.invert(shared)), table


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
