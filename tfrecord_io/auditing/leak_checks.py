"""Looks for patients and pictures in several splits, or under several labels."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.auditing.examined import Examined
from tfrecord_io.auditing.findings import Finding, good, note, problem, warning
from tfrecord_io.auditing.twins import MAX_DISTANCE, MIN_SIDE, NearPair
from tfrecord_io.format.examples import encode
from tfrecord_io.format.groups import MAX_CHAIN, plural_unit
from tfrecord_io.terminal.printing import counted, many

_Listed = tuple[dict[str, Any], ...]

_EXCLUDE = "audit --output copies.csv lists what build --exclude copies.csv leaves out."

# Of copies in several splits, the one in the first of these stays.
_KEPT_FIRST = ("test", "val", "train")


def check_known_patients(examined: Examined) -> Iterator[Finding]:
    """Yields the number of images whose patient is unknown."""
    sources = dict(examined.groups.sources)
    num_known = sources.pop("patient", 0)
    num_unknown = sum(sources.values())
    names = examined.groups.names
    patients = names.filter(pc.starts_with(names, "patient:")).unique()
    examined.measures |= {"patients": len(patients), "examples_without_patient": num_unknown}
    if num_unknown:
        share = f"{num_unknown:,} images do not name" if num_known else "No image names"
        detail = (
            f"They are grouped by {' or '.join(sources)}, so their patients may be in several "
            "splits. If file names contain the patient, build with --patient_regex."
        )
        yield warning("no_patient", f"{share} a patient", detail, num_unknown)


def check_patient_leaks(examined: Examined) -> Iterator[Finding]:
    """Yields the patients, and what stands for unknown ones, with images in several splits."""
    splits, units = examined.splits, _units(examined)
    images = _images_of_groups(examined, examined.split)
    leaked = {group: counts for group, counts in images.items() if len(counts) > 1}
    num_patients = Counter(split for counts in images.values() for split in counts)
    shared = []
    for pair in itertools.combinations(range(len(splits)), 2):
        if both := [counts for counts in leaked.values() if counts.keys() >= set(pair)]:
            facts = {
                "splits": [splits[split] for split in pair],
                "patients": len(both),
                "images": [sum(counts[split] for counts in both) for split in pair],
                "patients_of_each": [num_patients[split] for split in pair],
            }
            shared.append(facts)
    examined.measures |= {
        "patients_in_several_splits": len(leaked),
        "images_of_leaked_patients": sum(counts.total() for counts in leaked.values()),
        "shared_patients": shared,
    }
    if leaked:
        form = "{0} and {1} share {patients:,}, with {2:,} images in {0} and {3:,} in {1}"
        parts = "; ".join(form.format(*s["splits"], *s["images"], **s) for s in shared)
        title = f"{many(len(leaked), *units)} in more than one split"
        detail = (
            f"{parts[0].upper()}{parts[1:]}. Results on eyes that a model was trained on are too "
            "good. --splits patient makes new splits; --leaks drop keeps the splits, and each "
            "patient in one of them (test before val before train)."
        )
        listed = _list_patients(examined, leaked, splits)
        yield problem("patient_leak", title, detail, len(leaked), listed)
    elif images and len(splits) > 1:
        title = f"No {units[0]} is in more than one split"
        # Of images without a patient it is not known.
        found = note if examined.measures["examples_without_patient"] else good
        yield found("patient_leak", title, f"{many(len(images), *units)} known.")


def check_patient_labels(examined: Examined) -> Iterator[Finding]:
    """Yields the patients, or what stands for unknown ones, with images under several labels."""
    images = _images_of_groups(examined, examined.label)
    several = {group: counts for group, counts in images.items() if len(counts) > 1}
    examined.measures["patients_under_several_labels"] = len(several)
    if several:
        verb, kind = "has" if len(several) == 1 else "have", examined.kind
        how = f"in more than one {kind.noun}" if kind.one_hot else "with different labels"
        title = f"{counted(len(several), *_units(examined))} {verb} images {how}"
        detail = (
            f"Together they have {sum(counts.total() for counts in several.values()):,} images. "
            "Two eyes may differ and a disease changes, so this need not be wrong; but a patient "
            "must be in one split, as with --splits patient."
        )
        listed = _list_patients(examined, several, examined.labels)
        yield note("patient_labels", title, detail, len(several), listed)


def _units(examined: Examined) -> tuple[str, str]:
    """Returns what the known groups are, such as `patient or study`, and its plural."""
    sources = [source for source in examined.groups.sources if source != "image"]
    return " or ".join(sources), " or ".join(map(plural_unit, sources))


def _images_of_groups(examined: Examined, codes: np.ndarray) -> dict[str, Counter[int]]:
    """Returns for each known group, by name, how many of its images have each code."""
    images: dict[str, Counter[int]] = defaultdict(Counter)
    for name, code in zip(examined.groups.names.to_pylist(), codes.tolist(), strict=True):
        if not name.startswith("image:"):
            images[name][code] += 1
    return images


def _list_patients(
    examined: Examined, images: Mapping[str, Counter[int]], names: Sequence[str]
) -> _Listed:
    """Lists the groups with the most images, and their number of images by `names`."""
    groups = sorted(images, key=lambda group: -images[group].total())[: examined.most_listed]
    used = sorted({code for group in groups for code in images[group]})[:12]
    return tuple(
        {"patient": group.removeprefix("patient:")}
        | {names[code]: images[group][code] for code in used}
        for group in groups
    )


def check_exact(examined: Examined) -> Iterator[Finding]:
    """Yields pictures whose exact pixels occur again: across splits, labels or within a split."""
    texts, _ = encode(examined.examples["label"])  # numbers, too, and not their ranges
    groups = examined.twins.exact_groups()
    num_splits = [len(np.unique(examined.split[group])) for group in groups]
    across = [group for group, num in zip(groups, num_splits, strict=True) if num > 1]
    within = [group for group, num in zip(groups, num_splits, strict=True) if num < len(group)]
    conflicts = [group for group in groups if len(np.unique(texts[group])) > 1]
    num_again = sum(map(len, groups))
    examined.measures |= {
        "duplicate_pictures": len(groups),
        "duplicate_images": num_again - len(groups),
        "duplicate_pictures_across_splits": len(across),
        "duplicate_label_conflicts": len(conflicts),
    }
    if across:
        title = f"{many(len(across), 'picture')} in more than one split, pixel by pixel"
        detail = f"{sum(map(len, across)):,} images. {_EXCLUDE}"
        listed = _list_groups(examined, across)
        yield problem("picture_leak", title, detail, len(across), listed)
    if conflicts:
        title = f"{many(len(conflicts), 'picture')} under contradicting labels"
        plural = examined.dataset.label_kind.plural
        detail = f"The same pixels have different {plural}. {_EXCLUDE}"
        listed = _list_groups(examined, conflicts)
        yield problem("label_conflict", title, detail, len(conflicts), listed)
    if within:
        extra = num_again - sum(num_splits)
        title = f"{many(extra, 'image')} in the same split a second time"
        detail = f"{many(len(within), 'picture')} repeated, and each repetition counts in every "
        detail += f"result. {_EXCLUDE}"
        yield warning("duplicates", title, detail, extra, _list_groups(examined, within))
    if not groups:
        detail = f"All {examined.examples.num_rows:,} stored images differ."
        yield good("duplicates", "No two images have the same pixels", detail)


def _list_groups(examined: Examined, groups: Sequence[np.ndarray]) -> _Listed:
    """Lists pictures that occur several times."""
    listed = []
    for group in groups[: examined.most_listed]:
        rows = examined.examples.take(group).to_pylist()
        files = {row["file_xxh3"] for row in rows}
        is_one_file = len(files) == 1 and None not in files
        facts = {
            "images": len(group),
            "splits": ", ".join(sorted({row["split"] for row in rows[:4]})),
            "labels": ", ".join(sorted({row["label"] for row in rows[:4]})),
            "same file": "yes" if is_one_file else "no, same pixels",
            "first": rows[0]["path"],
            "again": rows[1]["path"],
        }
        listed.append(facts)
    return tuple(listed)


def check_near(examined: Examined) -> Iterator[Finding]:
    """Yields near duplicates across splits and labels, or why they were not looked for."""
    twins, noun = examined.twins, examined.dataset.label_kind.plural
    if twins.min_similarity is None:
        yield _near_not_looked_for(examined)
        return
    across, conflicts = (list(twins.near_across(c)) for c in (examined.split, examined.label))
    within = [
        pair
        for pair in twins.near_across(examined.groups.codes)
        if len(np.unique(examined.split[twins.copies_of(pair.first, pair.second)])) == 1
    ]
    examined.measures |= {
        "near_duplicate_pairs": len(across),
        "near_duplicate_pairs_within_splits": len(within),
        "near_duplicate_label_conflicts": len(conflicts),
        "near_duplicates_unchecked": twins.num_unchecked,
        "near_duplicates_complete": twins.complete and not twins.num_unchecked,
    }
    found = (
        (problem, "near_duplicates", across, "across splits",
         "Each is one picture that was saved again, brightened or resized, or one place of an eye "
         f"scanned twice. {_EXCLUDE}"),
        (warning, "near_duplicates_within", within, "in one split",
         "Their patients have different names, or none. Folds and intervals keep both together, "
         "but each counts in training."),
        (warning, "near_label_conflict", conflicts, "under different labels",
         f"Nearly the same picture has different {noun}. Look at both."),
    )  # fmt: skip
    for severity, code, pairs, where, detail in found:
        if pairs:
            listed = _list_pairs(examined.examples, pairs[: examined.most_listed])
            title = f"{counted(len(pairs), 'pair')} of near duplicates {where}"
            yield severity(code, title, detail, len(pairs), listed)
    if not across and len(examined.splits) > 1 and examined.measures["near_duplicates_complete"]:
        detail = (
            "No picture is a re-saved, brightened or resized copy of one in another split (hashes "
            f"within {MAX_DISTANCE} of 255 bits, fine detail correlated by "
            f"{twins.min_similarity:.2f} or more)."
        )
        yield good("near_duplicates", "No near duplicates across splits", detail)
    if chains := twins.long_chains:
        title = f"{counted(len(chains), 'chain')} of near duplicates not used"
        detail = (
            f"In each, pairs that look alike connect more than {MAX_CHAIN} images (up to "
            f"{max(chains):,}), which need not be the same picture. They are not counted, dropped "
            "or kept together."
        )
        yield warning("near_chains", title, detail, len(chains))
    if twins.num_unchecked or not (twins.complete or chains):
        title = "So many images look alike that not all pairs were compared"
        detail = f"{twins.num_unchecked:,} proposed pairs were left out, those within a split first"
        detail += "." if twins.complete else "; and the search itself may have missed pairs."
        yield warning("near_duplicates_unchecked", title, detail, twins.num_unchecked)


def _near_not_looked_for(examined: Examined) -> Finding:
    # Without a second split no picture leaks, however small it is.
    num_splits = len(np.unique(examined.split))
    examined.measures["near_duplicate_pairs"] = 0 if num_splits < 2 else None
    examined.measures["near_duplicate_label_conflicts"] = None
    detail = (
        f"Below {MIN_SIDE} pixels per side, different scans look as alike as copies. Build with a "
        "larger --image_size to have them compared. Exact copies were looked for."
    )
    return note("near_duplicates", "Near duplicates were not looked for", detail)


def _list_pairs(examples: pa.Table, pairs: Sequence[NearPair]) -> _Listed:
    """Lists pairs of rows with the facts needed to show them side by side."""
    columns = examples.select(["split", "label", "path", "shard", "row"])
    listed = []
    for pair in pairs:
        first, second = columns.take([pair.first, pair.second]).to_pylist()
        similarity = round(pair.similarity, 4)
        listed.append({"first": first, "second": second, "similarity": similarity})
    return tuple(listed)


def copies(examined: Examined) -> Iterator[dict[str, str]]:
    """Yields what `build --exclude` can leave out: copies of a picture, all but one.

    The one in test stays, else that in val. If copies have different labels, none with the same
    pixels stays, because nothing says which label is right.
    """
    paths, labels = (examined.examples[name].to_pylist() for name in ("path", "label"))
    places = {name: place for place, name in enumerate(_KEPT_FIRST)}
    order = [places.get(examined.splits[code], len(places)) for code in examined.split.tolist()]
    gone: set[int] = set()

    def row(place: int, kept: int, kind: str) -> dict[str, str]:
        gone.add(place)
        kind += "" if labels[place] == labels[kept] else ", another label"
        return {"path": paths[place], "copy_of": paths[kept], "kind": kind}

    for group in examined.twins.exact_groups():
        kept, *others = sorted(group.tolist(), key=lambda place: (order[place], place))
        for place in others:
            yield row(place, kept, "same pixels")
        if other := next((place for place in others if labels[place] != labels[kept]), None):
            yield row(kept, other, "same pixels")
    for pair in examined.twins.near:
        kept, place = sorted(pair[:2], key=lambda place: (order[place], place))
        if not gone & {kept, place}:
            yield row(place, kept, "near duplicate")


def near_search_gap(num_pairs: int | None, measures: Mapping[str, Any]) -> str | None:
    """Returns why one of an audit's numbers of near duplicates is incomplete, or None."""
    if num_pairs is None:
        return "near duplicates were not looked for; the audit's findings say why"
    if not measures.get("near_duplicates_complete", True):
        return "so many images look alike that copies among them may have been missed"
    return None
