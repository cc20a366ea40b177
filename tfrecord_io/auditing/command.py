"""`python -m tfrecord_io audit`: prints the findings of an audit, of images or of features."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfrecord_io import manifest
from tfrecord_io.auditing import neighbours
from tfrecord_io.auditing.audit import audit
from tfrecord_io.auditing.findings import MAX_LISTED
from tfrecord_io.auditing.leak_checks import near_search_gap
from tfrecord_io.auditing.twins import ImageReader
from tfrecord_io.files import atomic_write
from tfrecord_io.printing import printable, refuse

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `python -m tfrecord_io audit`."""
    parser.add_argument("directory", help="the dataset")
    for name, (meaning, _) in _COUNTED.items():
        parser.add_argument(
            f"--{name}", type=int, metavar="N", help=f"exit with 1 if there are more {meaning}"
        )
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
    dataset = manifest.Manifest.load(args.directory)
    given = {name: getattr(args, name) for name in (*_COUNTED, "max_shortcut_gain")}
    limits = {name: limit for name, limit in given.items() if limit is not None}
    violations: list[str] = []
    if not dataset.holds_features:
        if args.images:
            return refuse(f"--images is for features, but {args.directory} holds images itself")
        result = audit(args.directory, most_listed=None if args.json else MAX_LISTED)
        violations = _violations(limits, result.measures)
    elif limits:
        return refuse(
            f"{args.directory} holds features, and the limits are for images; audit the dataset "
            f"from which they were computed, {dataset.source['dataset']['name']}"
        )
    else:
        shown = _load_images(args.images, dataset) if args.images else None
        result = neighbours.audit_features(args.directory)
        if shown is not None:
            # Imported here because an audit without a page needs no templates.
            from tfrecord_io.auditing import pages

            images = ImageReader.of_folder(Path(args.images), shown)
            page = pages.environment().get_template("neighbours.html.jinja")
            text = page.render(
                found=shown,
                trunk=dataset.source["trunk"],
                audit=result,
                pairs=functools.partial(pages.pairs, images=images, most=MAX_LISTED),
                max_listed=MAX_LISTED,
            )
            with atomic_write(Path(args.page)) as file:
                file.write(text.encode())
    if args.json:
        print(json.dumps({**result.to_dict(), "violations": violations}, indent=1))
    else:
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
                gap = near_search_gap(counts[1], measures)
        else:
            shortcut = measures.get("shortcuts", {"accuracy": 0, "chance": 0})
            found = round(shortcut["accuracy"] - shortcut["chance"], 4)
        if found > limit or gap:
            lines.append(f"--{name} {limit}: {f'found {found:,}' if found > limit else gap}")
    return lines


def _load_images(directory: str, dataset: manifest.Manifest) -> manifest.Manifest:
    """Returns the manifest of the images from which features were computed."""
    of_images, wanted = manifest.Manifest.load(directory), dataset.source["dataset"]
    if of_images.fingerprint != wanted["fingerprint"]:
        raise manifest.ManifestError(
            f"--images {directory} has the fingerprint {of_images.fingerprint[:12]}…, but the "
            f"features were computed from {wanted['name']}, {wanted['fingerprint'][:12]}…; give "
            "the folder of that dataset"
        )
    return of_images
