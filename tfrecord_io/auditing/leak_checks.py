"""Looks for patients and pictures in several splits, or under several labels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc

from tfrecord_io.auditing.findings import Examined, Finding, good, note, problem, warning
from tfrecord_io.auditing.twins import MAX_DISTANCE, MIN_SIDE
from tfrecord_io.format.examples import encode
from tfrecord_io.format.groups import MAX_CHAIN, plural_unit
from tfrecord_io.terminal.printing import counted, many

_EXCLUDE = "audit --output copies.csv lists what build --exclude copies.csv leaves out."

# Of copies in several splits, the one in the first of these stays.
_KEPT_FIRST = ("test", "val", "train")


def check_patients(examined: Examined) -> Iterator[Finding]:
    """Yields unknown patients, and those in several splits.

    A study or a file stands for an unknown patient.
    """
    sources = dict(examined.groups.sources)
    num_known = sources.pop("patient", 0)
    num_unknown = sum(sources.values())
    names = examined.groups.names
    patients = names.filter(pc.starts_with(names, "patient:")).unique()
    if num_unknown:
        share = f"{num_unknown:,} images do not name" if num_known else "No image names"
        detail = (
            f"They are grouped by {' or '.join(sources)}, so their patients may be in several "
            "splits. If file names contain the patient, build with --patient_regex."
        )
        yield warning("no_patient", f"{share} a patient", detail, num_unknown)
    known = [source for source in examined.groups.sources if source != "image"]
    units = " or ".join(known), " or ".join(map(plural_unit, known))
    images: dict[str, Counter[str]] = defaultdict(Counter)
    for group, code in zip(names.to_pylist(), examined.split.tolist(), strict=True):
        if not group.startswith("image:"):
            images[group][examined.splits[code]] += 1
    leaked = [group for group, counts in images.items() if len(counts) > 1]
    leaked.sort(key=lambda group: -images[group].total())
    examined.measures |= {
        "patients": len(patients),
        "examples_without_patient": num_unknown,
        "patients_in_several_splits": len(leaked),
    }
    if leaked:
        detail = (
            "Results on eyes that a model was trained on are too good. --splits patient makes new "
            "splits; --leaks drop keeps the splits, and each patient in one of them (test before "
            "val before train)."
        )
        shown = leaked[: examined.most_listed]
        used = [split for split in examined.splits if any(images[group][split] for group in shown)]
        listed = tuple(
            {"patient": group.removeprefix("patient:")}
            | {split: images[group][split] for split in used}
            for group in shown
        )
        title = f"{many(len(leaked), *units)} in more than one split"
        yield problem("patient_leak", title, detail, len(leaked), listed)
    elif images and len(examined.splits) > 1:
        # Of images without a patient it is not known.
        found = note if num_unknown else good
        title = f"No {units[0]} is in more than one split"
        yield found("patient_leak", title, f"{many(len(images), *units)} known.")


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
        "duplicate_images": num_again - len(groups),
        "duplicate_pictures_across_splits": len(across),
        "duplicate_label_conflicts": len(conflicts),
    }
    plural, extra = examined.kind.plural, num_again - sum(num_splits)
    for severity, code, title, detail, count, pictures in (
        (problem, "picture_leak",
         f"{many(len(across), 'picture')} in more than one split, pixel by pixel",
         f"{sum(map(len, across)):,} images.", len(across), across),
        (problem, "label_conflict",
         f"{many(len(conflicts), 'picture')} under contradicting labels",
         f"The same pixels have different {plural}.", len(conflicts), conflicts),
        (warning, "duplicates", f"{many(extra, 'image')} in the same split a second time",
         "Each repetition counts in every result.", extra, within),
    ):  # fmt: skip
        if pictures:
            listed = []
            for group in pictures[: examined.most_listed]:
                rows = examined.examples.take(group).to_pylist()
                files = {row["file_xxh3"] for row in rows}
                is_one_file = len(files) == 1 and None not in files
                facts = {
                    "images": len(group),
                    "splits": ", ".join(sorted({row["split"] for row in rows})),
                    "labels": ", ".join(sorted({row["label"] for row in rows})),
                    "same file": "yes" if is_one_file else "no, same pixels",
                    "first": rows[0]["path"],
                    "again": rows[1]["path"],
                }
                listed.append(facts)
            yield severity(code, title, f"{detail} {_EXCLUDE}", count, tuple(listed))
    if not groups:
        detail = f"All {examined.examples.num_rows:,} stored images differ."
        yield good("duplicates", "No two images have the same pixels", detail)


def check_near(examined: Examined) -> Iterator[Finding]:
    """Yields near duplicates across splits and labels, or why they were not looked for."""
    twins = examined.twins
    if twins.min_similarity is None:
        # Without a second split no picture leaks, however small it is.
        num_splits = len(np.unique(examined.split))
        examined.measures["near_duplicate_pairs"] = 0 if num_splits < 2 else None
        examined.measures["near_duplicate_label_conflicts"] = None
        detail = (
            f"Below {MIN_SIDE} pixels per side, different scans look as alike as copies. Build "
            "with a larger --image_size to have them compared. Exact copies were looked for."
        )
        yield note("near_duplicates", "Near duplicates were not looked for", detail)
        return
    across, conflicts = (list(twins.near_across(c)) for c in (examined.split, examined.label))
    examined.measures |= {
        "near_duplicate_pairs": len(across),
        "near_duplicate_label_conflicts": len(conflicts),
        "near_duplicates_complete": twins.complete and not twins.num_unchecked,
    }
    columns = examined.examples.select(["split", "label", "path", "shard", "row"])
    for severity, code, pairs, where, detail in (
        (problem, "near_duplicates", across, "across splits",
         "Each is one picture that was saved again, brightened or resized, or one place of an eye "
         f"scanned twice. {_EXCLUDE}"),
        (warning, "near_label_conflict", conflicts, "under different labels",
         f"Nearly the same picture has different {examined.kind.plural}. Look at both."),
    ):  # fmt: skip
        if pairs:
            listed = []
            for pair in pairs[: examined.most_listed]:
                first, second = columns.take([pair.first, pair.second]).to_pylist()
                similarity = round(pair.similarity, 4)
                listed.append({"first": first, "second": second, "similarity": similarity})
            title = f"{counted(len(pairs), 'pair')} of near duplicates {where}"
            yield severity(code, title, detail, len(pairs), tuple(listed))
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
        if contradicting := [place for place in others if labels[place] != labels[kept]]:
            yield row(kept, contradicting[0], "same pixels")
    for pair in examined.twins.near:
        kept, place = sorted(pair[:2], key=lambda place: (order[place], place))
        if not gone & {kept, place}:
            yield row(place, kept, "near duplicate")
