"""`python -m tfrecord_io audit`: finds leaks between splits, duplicates and wrong labels.

It reads the examples table, the manifest, and the pixels of pairs that look alike. An audit without
findings does not prove that the data is clean; `LIMITS` lists what it cannot see.
"""

from __future__ import annotations

import argparse
import csv
import functools
import io
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tfrecord_io.auditing import content_checks, leak_checks
from tfrecord_io.auditing.examined import Check, Examined
from tfrecord_io.auditing.findings import MAX_LISTED, SEVERITIES, Audit
from tfrecord_io.auditing.twins import ImageReader, Twins, find_twins
from tfrecord_io.format.examples import audited, in_stored_order, read
from tfrecord_io.format.manifest import Manifest, ManifestError
from tfrecord_io.stores.files import atomic_write
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.address import local_path
from tfrecord_io.terminal.command import Command
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.printing import counted, printable

# Each yields its findings and adds its numbers to the measures.
_CHECKS = (
    leak_checks.check_known_patients,
    leak_checks.check_patient_leaks,
    leak_checks.check_patient_labels,
    leak_checks.check_exact,
    leak_checks.check_near,
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
    "turned, mirrored and heavily edited copies are not looked for.",
    "Near duplicates of one patient in one split under one label are not looked for, because scans "
    "of one eye look alike.",
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


def audit(
    directory: str | os.PathLike[str],
    checks: Sequence[Check] = (),
    *,
    most_listed: int | None = MAX_LISTED,
) -> Audit:
    """Audits a finished dataset in a folder or at a URL.

    `checks` come after the audit's own. A finding lists up to `most_listed` cases, or all for None.

    Raises:
        ManifestError: if the dataset is unfinished or unusable.
        OSError: if a file of the dataset is missing.
    """
    dataset = Manifest.load(directory)
    examples = audited(in_stored_order(read(directory), dataset))
    images = ImageReader(dataset.layout, Folder(directory))
    twins = find_twins(examples, images, dataset)
    return audit_examples(examples, twins, dataset, checks, most_listed)


def audit_examples(
    examples: pa.Table,
    twins: Twins,
    dataset: Manifest,
    checks: Sequence[Check] = (),
    most_listed: int | None = MAX_LISTED,
) -> Audit:
    """Audits the examples of a dataset, see `audit`, and `Examined` for the arguments."""
    examined = Examined(examples, twins, dataset, most_listed)
    finders = (*_CHECKS, *(check.find for check in checks))
    findings = itertools.chain.from_iterable(find(examined) for find in finders)
    ranked = sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return Audit(tuple(ranked), examined.measures, tuple(leak_checks.copies(examined)))


def command(checks: Sequence[Check]) -> Command:
    """Returns `python -m tfrecord_io audit`, with some checks besides its own."""
    return Command(
        name="audit",
        purpose="look for leaks, copies, contradictions and shortcuts",
        add_arguments=functools.partial(_add_arguments, checks),
        run=functools.partial(_run, checks),
        codes={ManifestError: 1},
    )


def _add_arguments(checks: Sequence[Check], parser: argparse.ArgumentParser) -> None:
    flags.add_dataset(parser)
    for name, (meaning, _) in _COUNTED.items():
        text = f"exit with 1 if there are more {meaning}"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    for check in checks:
        check.add_arguments(parser)
    text = "write the copies of pictures as a table, which build --exclude can leave out"
    parser.add_argument("--output", type=local_path, metavar="FILE.csv", help=text)
    parser.add_argument(
        "--json", action="store_true", help="print the findings as JSON, with all cases"
    )


def _run(checks: Sequence[Check], args: argparse.Namespace) -> int:
    """Prints the findings; returns 1 if a limit is exceeded and 0 otherwise."""
    for name, limit in vars(args).items():
        least = 0 if isinstance(limit, int) else -1  # guessing may be better than facts
        if name.startswith("max_") and limit is not None and not limit >= least:
            raise UserError(f"--{name} must be at least {least}, received {limit}")
    directory = args.directory
    result = audit(directory, checks, most_listed=None if args.json else MAX_LISTED)
    if args.output:
        writer = csv.DictWriter(text := io.StringIO(), ["path", "copy_of", "kind"])
        writer.writeheader()
        writer.writerows(result.copies)
        with atomic_write(args.output) as file:
            file.write(text.getvalue().encode())
        rows = counted(len(result.copies), "row")
        print(f"{args.output} has {rows} for {flags.command('build')} --exclude", file=sys.stderr)
    violations = _violations(args, result.measures)
    violations += [line for check in checks for line in check.violations(args, result.measures)]
    if args.json:
        print(json.dumps({**result.to_dict(), "violations": violations}, indent=1))
        return 1 if violations else 0
    for finding in result.findings:
        print(f"{finding.severity.upper():8} {printable(finding.title)}")
        print(f"         {printable(finding.detail)}")
    for line in violations:
        print(f"FAILED   {line}")
    return 1 if violations else 0


def _violations(args: argparse.Namespace, measures: Mapping[str, Any]) -> list[str]:
    """Returns a line for each limit that is exceeded or cannot be checked."""
    lines = []
    for name, (_, numbers) in _COUNTED.items():
        if (limit := getattr(args, name)) is None:
            continue
        counts = [measures[measure] for measure in numbers]
        found = sum(count or 0 for count in counts)
        gap = leak_checks.near_search_gap(counts[1], measures) if len(counts) > 1 else None
        if found > limit or gap:
            lines.append(f"--{name} {limit}: {f'found {found:,}' if found > limit else gap}")
    return lines
