"""`python -m tfrecord_io audit`: finds leaks between splits, duplicates, wrong labels, shortcuts.

The audit of images reads the examples table, the manifest, and the pixels of pairs that look alike;
that of features compares these. An audit without findings does not prove that the data is clean;
`LIMITS` lists what it cannot see.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tfrecord_io.auditing import content_checks, leak_checks, neighbours, shortcuts, twins
from tfrecord_io.auditing.columns import read_examples
from tfrecord_io.auditing.examined import Examined
from tfrecord_io.auditing.findings import MAX_LISTED, Audit
from tfrecord_io.auditing.twins import ImageReader, Twins, find_twins
from tfrecord_io.files import atomic_write
from tfrecord_io.manifest import EXAMPLES_FILE_NAME, Manifest, ManifestError
from tfrecord_io.printing import printable, refuse

# Each yields its findings and adds its numbers to the measures.
_CHECKS = (
    content_checks.check_numbers,
    leak_checks.check_known_patients,
    leak_checks.check_patient_leaks,
    leak_checks.check_patient_labels,
    leak_checks.check_exact,
    leak_checks.check_near,
    shortcuts.check_shortcuts,
    content_checks.check_classes,
    content_checks.check_sizes,
    content_checks.check_blank,
    content_checks.check_source,
)

#: What the audit cannot see; every report lists it.
LIMITS = (
    "Patients are known by file names, a table or DICOM tags. One person with two names is not "
    "noticed.",
    "Near duplicates are found if they were saved again, brightened, dimmed or resized. Cropped, "
    "turned and mirrored copies can only be guessed from features, by python -m tfrecord_io audit "
    "FEATURES; heavily edited ones are not looked for.",
    "Near duplicates of one patient in one split under one label are not looked for, because scans "
    "of one eye look alike.",
    "How well facts about the files predict the class is measured with a simple model. A stronger "
    "model may predict more.",
    "The audit does not check whether the labels are medically right.",
)

# Limits of numbers: what each of them counts, and the measures that do. Of two measures, the second
# is of near duplicates, which may not have been looked for.
_COUNTED = {
    "max_leaked_patients": ("patients in several splits", ["patients_in_several_splits"]),
    "max_leaked_pictures": (
        "pictures in several splits, near duplicates included",
        ["duplicate_pictures_across_splits", "near_duplicate_pairs"],
    ),
    "max_duplicates": ("images that repeat another one, pixel by pixel", ["duplicate_images"]),
    "max_label_conflicts": (
        "pictures under contradicting labels",
        ["duplicate_label_conflicts", "near_duplicate_label_conflicts"],
    ),
}


def audit(directory: str | os.PathLike[str], *, most_listed: int | None = MAX_LISTED) -> Audit:
    """Audits a finished dataset of images or of features on a local disk.

    A finding lists up to `most_listed` cases, or all for None.

    Raises:
        ManifestError: if the dataset is unfinished or unusable.
        OSError: if a file of the dataset is missing.
    """
    dataset, directory = Manifest.load(directory), Path(directory)
    examples = read_examples(directory / EXAMPLES_FILE_NAME)
    num_images = dataset.num_examples - dataset.counts.get("variants", 0)
    if examples.num_rows != num_images:
        raise ManifestError(
            f"{EXAMPLES_FILE_NAME} names {examples.num_rows:,} images, but the manifest "
            f"{num_images:,}; copy the dataset again"
        )
    if dataset.holds_features:
        return neighbours.audit_features(directory, dataset, examples)
    images = ImageReader.of_folder(directory, dataset)
    twins = find_twins(examples, images, dataset.label_kind)
    return audit_examples(examples, twins, dataset, most_listed)


def audit_examples(
    examples: pa.Table, twins: Twins, dataset: Manifest, most_listed: int | None = MAX_LISTED
) -> Audit:
    """Audits the examples of a dataset of images, see `Examined` for the arguments."""
    examined = Examined(examples, twins, dataset, most_listed)
    findings = itertools.chain.from_iterable(check(examined) for check in _CHECKS)
    return Audit.of(findings, examined.measures)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `python -m tfrecord_io audit`."""
    parser.add_argument("directory", help="the dataset")
    for name, (meaning, _) in _COUNTED.items():
        text = f"exit with 1 if there are more {meaning}"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    parser.add_argument(
        "--max_shortcut_gain",
        type=float,
        metavar="X",
        help="exit with 1 if facts about the files predict the class better than guessing by more",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the findings as JSON, with all cases"
    )
    parser.add_argument(
        "--images",
        metavar="OUT",
        help="of features: the dataset of images, for a page that shows what was found",
    )
    parser.add_argument(
        "--page",
        default="neighbours.html",
        metavar="HTML",
        help="the page that --images writes (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the findings; returns 1 if a limit is exceeded, 2 for wrong usage and 0 otherwise."""
    dataset = Manifest.load(args.directory)
    given = {name: getattr(args, name) for name in (*_COUNTED, "max_shortcut_gain")}
    limits = {name: limit for name, limit in given.items() if limit is not None}
    if args.images and not dataset.holds_features:
        return refuse(f"--images is for features, but {args.directory} holds images itself")
    if limits and dataset.holds_features:
        return refuse(
            f"{args.directory} holds features, and the limits are for images; audit the dataset "
            f"from which they were computed, {dataset.source['dataset']['name']}"
        )
    shown = _load_images(args.images, dataset) if args.images else None
    result = audit(args.directory, most_listed=None if args.json else MAX_LISTED)
    violations = _violations(limits, result.measures)
    if shown is not None:
        text = _page(result, dataset, shown, Path(args.images))
        with atomic_write(Path(args.page)) as file:
            file.write(text.encode())
    if args.json:
        print(json.dumps({**result.to_dict(), "violations": violations}, indent=1))
        return 1 if violations else 0
    for finding in result.findings:
        print(f"{finding.severity.upper():8} {printable(finding.title)}")
        print(f"         {printable(finding.detail)}")
    for line in violations:
        print(f"FAILED   {line}")
    if args.images:
        print(f"wrote {args.page}")
    return 1 if violations else 0


def _violations(limits: Mapping[str, float], measures: Mapping[str, Any]) -> list[str]:
    """Returns a line for each limit, by its flag, that is exceeded or cannot be checked."""
    lines = []
    for name, limit in limits.items():
        gap = None
        if name in _COUNTED:
            counts = [measures[measure] for measure in _COUNTED[name][1]]
            found = sum(count or 0 for count in counts)
            if len(counts) > 1:
                gap = leak_checks.near_search_gap(counts[1], measures)
        else:
            shortcut = measures.get("shortcuts", {"accuracy": 0, "chance": 0})
            found = round(shortcut["accuracy"] - shortcut["chance"], 4)
        if found > limit or gap:
            lines.append(f"--{name} {limit}: {f'found {found:,}' if found > limit else gap}")
    return lines


def _load_images(directory: str, dataset: Manifest) -> Manifest:
    """Returns the manifest of the images from which features were computed."""
    of_images, wanted = Manifest.load(directory), dataset.source["dataset"]
    if of_images.fingerprint != wanted["fingerprint"]:
        raise ManifestError(
            f"--images {directory} has the fingerprint {of_images.fingerprint[:12]}…, but the "
            f"features were computed from {wanted['name']}, {wanted['fingerprint'][:12]}…; give "
            "the folder of that dataset"
        )
    return of_images


def _page(result: Audit, features: Manifest, shown: Manifest, directory: Path) -> str:
    """Returns the page that shows what was found among features, with the images of a folder."""
    # Imported here because an audit without a page needs no templates.
    from tfrecord_io.pages.page import environment

    images = ImageReader.of_folder(directory, shown)
    template = environment(Path(__file__).parent).get_template("neighbours.html.jinja")
    return template.render(
        found=shown,
        trunk=features.source["trunk"],
        audit=result,
        pairs=functools.partial(twins.pairs, images=images, most=MAX_LISTED),
        max_listed=MAX_LISTED,
    )
