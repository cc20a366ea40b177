"""`python -m tfrecord_io audit`: finds leaks between splits, duplicates and wrong labels.

It reads the examples table, the manifest, and the pixels of pairs that look alike. An audit without
findings does not prove that the data is clean; `LIMITS` lists what it cannot see.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import os
import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tfrecord_io.auditing import leak_checks, shortcuts
from tfrecord_io.auditing.findings import (
    MAX_LISTED,
    SEVERITIES,
    Audit,
    Examined,
    Finding,
    problem,
    warning,
)
from tfrecord_io.auditing.twins import ImageReader, Twins, find_twins
from tfrecord_io.format import shapes
from tfrecord_io.format.examples import audited, in_stored_order, read_examples
from tfrecord_io.format.manifest import Manifest, ManifestError
from tfrecord_io.stores.files import atomic_write
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.address import local_path
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.printing import counted, listed, many, printable

# Grey levels from black or white, of 255.
_NEARLY = 4

# More classes than this may be patients, dates or devices.
_MANY_CLASSES = 100

#: What the audit cannot see; every report lists it.
LIMITS = (
    "Patients are known by names, a table or DICOM tags. One person with two names is two.",
    "Copies that were cropped, turned, mirrored or heavily edited are not looked for.",
    "Near duplicates of one patient, split and label are not either: scans of an eye look alike.",
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
    """Audits a finished dataset in a folder or at a URL.

    A finding lists up to `most_listed` cases, or all for None.

    Raises:
        ManifestError: if the dataset is unfinished or unusable.
        OSError: if a file of the dataset is missing.
    """
    dataset = Manifest.load(directory)
    examples = audited(in_stored_order(read_examples(directory), dataset))
    images = ImageReader(dataset.layout, Folder(directory))
    return audit_examples(examples, find_twins(examples, images, dataset), dataset, most_listed)


def audit_examples(
    examples: pa.Table, twins: Twins, dataset: Manifest, most_listed: int | None = MAX_LISTED
) -> Audit:
    """Audits the examples of a dataset, see `audit`, and `Examined` for the arguments."""
    examined = Examined(examples, twins, dataset, most_listed)
    of_images = examples["shape"].to_numpy()
    examined.measures["shapes"] = {
        name: shapes.distinct(of_images[examined.split == place].tolist())
        for place, name in enumerate(examined.splits)
    }
    # Each yields its findings and adds its numbers to the measures.
    finders = (
        leak_checks.check_patients,
        leak_checks.check_exact,
        leak_checks.check_near,
        _check_classes,
        _check_blank,
        shortcuts.check_shortcuts,
    )
    findings = itertools.chain.from_iterable(find(examined) for find in finders)
    ranked = sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return Audit(tuple(ranked), examined.measures, tuple(leak_checks.copies(examined)))


def _check_classes(examined: Examined) -> Iterator[Finding]:
    """Yields classes that are missing, the only one, or very many."""
    dataset, kind = examined.classes, examined.kind
    names = dataset.label_names
    counts = {name: np.array(split.label_counts) for name, split in dataset.splits.items()}
    if kind.one_hot and len(names) == 1:
        detail = "Every result would be perfect. --layout, --label_regex or --labels name classes."
        yield problem("one_class", f"All images are of one {kind.noun}, {names[0]}", detail, 1)
    if kind.one_hot and len(names) > _MANY_CLASSES:
        title = f"There are {len(names):,} {kind.plural}"
        detail = f"Such as {listed(names, 3)}. If these are patients, dates or devices, name the "
        detail += "level of the class with --layout, or give a table of --labels."
        yield warning("many_classes", title, detail, len(names))
    for name, values in counts.items():
        missing = [names[place] for place in np.flatnonzero(values == 0)]
        if missing:
            title = f"{many(len(missing), kind.noun, kind.plural)} missing from {name}"
            detail = f"{listed(missing, 12)}: this split can neither teach nor test them."
            yield warning("class_missing", title, detail, len(missing))


def _check_blank(examined: Examined) -> Iterator[Finding]:
    """Yields the images of a single colour, and the classes in which nearly all pixels have one."""
    num_blank = int(examined.twins.is_blank.sum())
    if num_blank:
        title = f"{many(num_blank, 'image')} of a single colour"
        yield warning("blank", title, "They show nothing.", num_blank)
    has_level = "brightness" in examined.examples.column_names
    brightness = examined.examples["brightness"].to_numpy() if has_level else np.empty(0)
    for place, name in enumerate(examined.labels if has_level else ()):
        members = brightness[examined.label == place]
        level = float(np.median(members)) if len(members) else 128.0
        if min(level, 255 - level) < _NEARLY:
            colour = "black" if level < 128 else "white"
            title = f"Half of the images of {name} are nearly {colour}"
            detail = f"Their mean is {level:.1f} of 255 or {'less' if level < 128 else 'more'}: of "
            detail += "DICOM, --window may show more of them; look at the pictures on the page."
            yield warning("extreme_levels", title, detail, len(members))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command."""
    flags.add_dataset(parser)
    for name, (meaning, _) in _COUNTED.items():
        text = f"exit with 1 if there are more {meaning}"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    text = "exit with 1 if facts about the files predict the class better than guessing by more"
    parser.add_argument("--max_shortcut_gain", type=float, metavar="X", help=text)
    text = "write the copies of pictures as a table, which build --exclude can leave out"
    parser.add_argument("--output", type=local_path, metavar="FILE.csv", help=text)
    text = "print the findings as JSON, with all cases"
    parser.add_argument("--json", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Prints the findings; returns 1 if a limit is exceeded or cannot be checked, else 0."""
    for name, limit in vars(args).items():
        least = 0 if isinstance(limit, int) else -1  # guessing may be better than facts
        if name.startswith("max_") and limit is not None and not limit >= least:
            raise UserError(f"--{name} must be at least {least}, received {limit}")
    result = audit(args.directory, most_listed=None if args.json else MAX_LISTED)
    if args.output:
        writer = csv.DictWriter(text := io.StringIO(), ["path", "copy_of", "kind"])
        writer.writeheader()
        writer.writerows(result.copies)
        with atomic_write(args.output) as file:
            file.write(text.getvalue().encode())
        rows = counted(len(result.copies), "row")
        print(f"{args.output} has {rows} for {flags.command('build')} --exclude", file=sys.stderr)
    violations: list[str] = []
    measures = result.measures
    for name, (_, numbers) in _COUNTED.items():
        if (limit := getattr(args, name)) is None:
            continue
        counts = [measures[measure] for measure in numbers]
        if (found := sum(count or 0 for count in counts)) > limit:
            violations.append(f"--{name} {limit}: found {found:,}")
        elif None in counts:
            violations.append(f"--{name} {limit}: near duplicates were not looked for")
        elif len(counts) > 1 and not measures.get("near_duplicates_complete", True):
            violations.append(f"--{name} {limit}: not all pairs that look alike were compared")
    limit, measured = args.max_shortcut_gain, measures.get("shortcuts")
    gain = round(measured["accuracy"] - measured["chance"], 4) if measured else 0
    if limit is not None and gain > limit:
        violations.append(f"--max_shortcut_gain {limit}: found {gain:,}")
    if args.json:
        print(json.dumps({**result.to_dict(), "violations": violations}, indent=1))
        return 1 if violations else 0
    for finding in result.findings:
        print(f"{finding.severity.upper():8} {printable(finding.title)}")
        print(f"         {printable(finding.detail)}")
    for line in violations:
        print(f"FAILED   {line}")
    return 1 if violations else 0


COMMAND = flags.Command(
    name="audit",
    purpose="look for leaks, copies, contradictions and shortcuts",
    add_arguments=add_arguments,
    run=run,
    codes={ManifestError: 1},
)
