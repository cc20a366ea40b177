"""What pages say a network has seen, against a count of shared pixels and patients made here.

Each case draws scans with copies and unknown patients, builds one or two datasets of them, trains,
and measures: by evaluation, above a trunk, or by folds. The count asks nothing of `train.data`.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import gc
import html
import json
import random
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from unittest import mock

import builds
import image_files
import marked_images
import numpy as np
import pyarrow.parquet as pq

from pipelines.errors import BuildError
from tfrecord_io.errors import UserError
from tfrecord_io.reading.mapped import MappedDataset

_LABELS = ("CNV", "NORMAL")
_SPLITS = ("train", "val", "test")
_CLAIMS = ("never seen", "held out", "other patients")

#: A network of a second; the claims do not depend on what it learns.
_SETTINGS = marked_images.SMALL_RUN | {
    "epochs": 1,
    "replica_batch_size": 2,
    "bootstrap_samples": 0,
}


@dataclasses.dataclass(frozen=True)
class _Scan:
    """A file: what it shows, and what a hospital knows about it."""

    name: str
    content: bytes
    label: str
    patient: str
    site: str
    is_unknown: bool


@dataclasses.dataclass(eq=False)
class _Image:
    """A stored example, and the best known patient of all images that belong to it."""

    key: str
    split: str
    path: str
    pixels: bytes
    patient: str | None
    site: str | None
    is_copy: bool
    group: int = -1
    person: tuple[str, str | None] | None = None


def try_case(rng: random.Random, folder: Path) -> tuple[str, list[str], str]:
    """Builds, trains and measures in a random way; see `archives.try_case`."""
    import keras

    keras.utils.clear_session()
    gc.collect()
    scans = _draw_scans(rng)
    ways = {"evaluation": _try_evaluation, "trunk": _try_trunk, "folds": _try_folds}
    (way,) = rng.choices(list(ways), weights=(5, 3, 2))
    # Charts take half of the time and claim nothing; one that cannot be drawn costs a warning.
    undrawn = mock.patch("matplotlib.figure.Figure.savefig", side_effect=OSError("not drawn"))
    with contextlib.chdir(folder), undrawn:
        first = _build(rng, scans, "first")
        second = first if rng.random() < 0.2 else _build(rng, scans, "second")
        outcome, problems = ways[way](rng, first, second)
    return f"{way}: {outcome}", problems, f"{len(scans)} scans"


# ---- scans and datasets


def _draw_scans(rng: random.Random) -> list[_Scan]:
    num_patients, unknown = rng.randint(8, 16), rng.choice((0, 0, 0, 0.1))
    copies = rng.choice((0, 0.1, 0.2))
    sites = [rng.choice(("london", "zurich")) for _ in range(num_patients)]
    scans: list[_Scan] = []
    for number in range(rng.randint(36, 60)):
        person = rng.randrange(num_patients)
        content = image_files.png(rng.randrange(1 << 30), 12, 12)
        if scans and rng.random() < copies:
            content = rng.choice(scans).content
        scan = _Scan(
            name=f"{number}.png",
            content=content,
            label=_LABELS[number % 2],
            # Both sites count their patients from 0.
            patient=str(person // 2),
            site=sites[person],
            is_unknown=rng.random() < unknown,
        )
        scans.append(scan)
    return scans


def _build(rng: random.Random, scans: Sequence[_Scan], name: str) -> Path:
    """Builds a dataset of all scans or some, with what one hospital knows of them."""
    chosen = [scan for scan in scans if rng.random() < 0.7] if rng.random() < 0.5 else list(scans)
    knows_patients, knows_sites = rng.random() < 0.9, rng.random() < 0.4
    renames = rng.random() < 0.2
    by = rng.choice(("patient", "image", "command"))
    of_person = {scan.patient: rng.choices(_SPLITS, (5, 2, 3))[0] for scan in scans}
    flags = [f"--variants={rng.choice((0, 0, 1, 2))}"]
    flags += rng.choice(([], [], [], ["--duplicates=drop"], ["--leaks=drop"]))
    rows = []
    for scan in chosen:
        row = {"path": scan.name, "label": scan.label}
        if knows_patients:
            patient = f"{name}-{scan.patient}" if renames else scan.patient
            row["patient"] = "" if scan.is_unknown else patient
        if knows_sites:
            row["site"] = scan.site
        row["split"] = of_person[scan.patient] if by == "patient" else rng.choice(_SPLITS)
        rows.append(row)
    if by == "command":
        for row in rows:
            del row["split"]
        shares = "--split_fractions=train=0.5,val=0.2,test=0.3"
        flags += ["--splits=patient", shares, f"--split_seed={rng.randrange(9)}"]
    source = image_files.write_tree(
        Path(f"{name}-scans"), {scan.name: scan.content for scan in chosen}
    )
    table = Path(f"{name}.csv")
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    try:
        return builds.build_here(source, Path(name), f"--labels={table}", "--image_size=12", *flags)
    except (UserError, BuildError):
        # The seed leaves a split empty, or nothing is left of a class.
        return _build(rng, scans, f"{name}x")


def _read(data: Path) -> list[_Image]:
    """Returns the examples of a dataset with what belongs together."""
    rows = pq.read_table(data / "examples.parquet").to_pylist()
    images = []
    for split in _SPLITS:
        if any(row["split"] == split for row in rows):
            stored = MappedDataset(data, split)
            places = np.arange(len(stored))
            pixels = dict(zip(stored.keys(places), stored[places][0], strict=True))
            for row in rows:
                if row["split"] == split:
                    image = _Image(
                        key=row["key"],
                        split=split,
                        path=row["path"],
                        pixels=pixels[row["key"]].tobytes(),
                        patient=row["patient"],
                        site=row.get("site"),
                        is_copy=row["variant"] > 0,
                    )
                    images.append(image)
    _join(images)
    return images


def _join(images: Sequence[_Image]) -> None:
    """Numbers the groups: images share a patient, a file, or the pixels, in any number of steps."""
    members = [[image] for image in images]
    for number, image in enumerate(images):
        image.group = number
    found: dict[tuple[str, object], int] = {}
    for image in images:
        links: list[tuple[str, object]] = [("path", image.path)]
        if image.patient is not None:
            links.append(("patient", image.patient))
        if not image.is_copy:
            links.append(("pixels", image.pixels))
        for link in links:
            other = found.setdefault(link, image.group)
            while members[other][0].group != other:
                other = members[other][0].group
            if other != image.group:
                moved = members[image.group]
                members[other] += moved
                for each in moved:
                    each.group = other
    for image in images:
        people = [each for each in members[image.group] if each.patient is not None]
        if people:
            image.person = _person(min(people, key=lambda each: each.patient or ""))


def _person(image: _Image) -> tuple[str, str | None] | None:
    """Returns an image's patient and site."""
    if image.patient is None:
        return None
    return image.patient.removeprefix(f"{image.site}/"), image.site


# ---- the count


def _of(images: Iterable[_Image], *splits: str) -> list[_Image]:
    return [image for image in images if image.split in splits]


def _are_same(ours: tuple | None, theirs: tuple | None) -> bool:
    if ours is None or theirs is None or ours[0] != theirs[0]:
        return False
    return None in (ours[1], theirs[1]) or ours[1] == theirs[1]


def _count(seen: Sequence[_Image], images: Sequence[_Image]) -> set[str]:
    """Returns the keys of the images of a dataset that were seen."""
    pixels = {image.pixels for image in seen}
    people, groups = {_person(image) for image in seen}, {image.person for image in seen}
    direct = {
        image.group
        for image in images
        if image.pixels in pixels
        or any(_are_same(_person(image), person) for person in people)
        or any(_are_same(image.person, person) for person in groups)
    }
    return {image.key for image in images if image.group in direct}


def _complaints(
    folder: Path,
    seen: Sequence[_Image],
    images: Sequence[_Image],
    part: Sequence[_Image],
    *,
    is_measured: bool,
    is_own: bool,
    is_unknown: bool = False,
    is_val: bool = False,
    is_folds: bool = False,
) -> list[str]:
    """Compares metrics.json and the page of a measurement with the count.

    Args:
        folder: of the measurement.
        seen: by the network.
        images: of the dataset.
        part: that was to be measured.
        is_measured: whether seen images are measured, too.
        is_own: whether it is the test of a run, not an evaluation.
        is_unknown: whether nobody can know what the network has seen.
        is_val: whether the part is the validation of the run itself.
        is_folds: whether it is a cross-validation.
    """
    known = _count(seen, images)
    hit = [image for image in part if image.key in known]
    rest = part if is_measured else [image for image in part if image.key not in known]
    found = json.loads((folder / "metrics.json").read_text())
    wanted = {
        "num_examples": len(rest),
        "seen_images": len(hit),
        "seen_patients": len({image.patient for image in hit} - {None}),
    }
    problems = [
        f"{folder}: {name} is {found.get(name)}, counted {value}"
        for name, value in wanted.items()
        if found.get(name) != value
    ]
    body = (folder / "report.html").read_text().partition("<body>")[2]
    page = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())
    is_doubtful = is_unknown or any(image.patient is None for image in (*rest, *seen))
    if is_doubtful != ("t cannot be known whether the network has seen" in page):
        problems.append(f"{folder}: the page is {'not ' * is_doubtful}in doubt")
    is_proven = not is_doubtful and not is_val and not (hit and is_measured)
    if is_folds:
        claims = re.findall(r"Each of these (\d+) images .*? learned from other patients", page)
    else:
        claims = re.findall(r"Of these (\d+) images? of \d+ patients?, the network had never", page)
    if claims != ([str(len(rest))] if is_proven else []):
        problems.append(f"{folder}: it claims {claims}, proven is {is_proven} of {len(rest)}")
    if not is_proven and any(claim in page for claim in _CLAIMS):
        problems.append(f"{folder}: the page claims what is not proven")
    if hit and not is_measured and f"{len(hit)} further image" not in page:
        problems.append(f"{folder}: the page does not say that {len(hit)} were left out")
    if hit and is_measured and f"{len(hit)} of these images" not in page:
        problems.append(f"{folder}: the page does not say that {len(hit)} were seen")
    if not is_own and is_measured and f"including {len(hit)} that" not in page.partition(". ")[0]:
        problems.append(f"{folder}: the first sentence does not say that all were measured")
    return problems


# ---- ways


def _train(data: Path, workdir: Path, **fields: object) -> int:
    from train import run

    settings = {**_SETTINGS, **fields}
    if json.loads((data / "manifest.json").read_text())["source"].get("trunk"):
        del settings["model"]  # the trunk decides it
    return run.main([f"--data={data}", f"--workdir={workdir}", *marked_images.flags(**settings)])


def _check_run(workdir: Path, seen: Sequence[_Image], images: Sequence[_Image]) -> list[str]:
    """Looks at the page of a run without a trunk, and at its table."""
    listed = pq.read_table(workdir / "seen.parquet").to_pylist()
    wanted = {(image.key, image.split) for image in seen}
    problems = []
    if {(row["key"], row["part"]) for row in listed} != wanted:
        problems.append(f"{workdir}: seen.parquet lists other images")
    if test := _of(images, "test"):
        return problems + _complaints(workdir, seen, images, test, is_measured=True, is_own=True)
    if val := _of(images, "val"):
        return problems + _complaints(
            workdir, _of(seen, "train"), images, val, is_measured=True, is_own=True, is_val=True
        )
    return problems


def _try_evaluation(rng: random.Random, first: Path, second: Path) -> tuple[str, list[str]]:
    ours, theirs = _read(first), _read(second)
    seen = _of(ours, "train", "val")
    if len(_of(ours, "train")) < 2:
        return "no training images", []
    if code := _train(first, Path("run")):
        return "training failed", [f"the training ended with {code}"]
    problems = _check_run(Path("run"), seen, ours)
    is_unknown = rng.random() < 0.15
    if is_unknown:
        Path("run/seen.parquet").unlink()
        seen = []
    outcome, more = _evaluate(rng, Path("run"), second, seen, theirs, is_unknown=is_unknown)
    return outcome, problems + more


def _evaluate(
    rng: random.Random,
    run: Path,
    data: Path,
    seen: Sequence[_Image],
    images: Sequence[_Image],
    *,
    is_unknown: bool = False,
) -> tuple[str, list[str]]:
    from train import evaluate

    split, includes = rng.choice([*_SPLITS, "test"]), rng.random() < 0.25
    part = [image for image in _of(images, split) if not image.is_copy]
    if not part:
        return "empty split", []
    flags = ["--include_seen"] * includes
    words = [f"--model={run}", f"--data={data}", f"--split={split}", "--bootstrap_samples=0"]
    code = evaluate.main([*words, "--output=measured", *flags])
    is_empty = not includes and {image.key for image in part} <= _count(seen, images)
    if code or is_empty:
        right = code == 2 and is_empty
        return "nothing left", [] if right else [f"it ends with {code}, nothing left: {is_empty}"]
    return "measured", _complaints(
        Path("measured"), seen, images, part,
        is_measured=includes, is_own=False, is_unknown=is_unknown,
    )  # fmt: skip


def _try_trunk(rng: random.Random, first: Path, second: Path) -> tuple[str, list[str]]:
    """Trains above a trunk that was cut from another run, and evaluates that."""
    import keras

    from pipelines import extract_features
    from train import trunk

    ours, theirs = _read(first), _read(second)
    below = _of(ours, "train", "val")
    if min(len(_of(images, "train")) for images in (ours, theirs)) < 2:
        return "no training images", []
    if code := _train(first, Path("run")):
        return "training failed", [f"the training ended with {code}"]
    network = keras.saving.load_model("run/export/model.keras", compile=False)
    layers = [layer.name for layer in network.get_layer("convnet").layers]
    layer = next(name for name in layers if "pooling" in name)
    trunk.write_trunk(str(first), "run", layer, Path("trunk.keras"))
    is_unknown = rng.random() < 0.2
    if is_unknown:
        Path("trunk.seen.parquet").unlink()
        below = []
    words = [f"--data={second}", "--trunk=trunk.keras", "--output=features", builds.IN_MEMORY]
    if code := extract_features.main(words):
        return "extraction failed", [f"the extraction ended with {code}"]
    by_trunk = _count(below, theirs)
    if rng.random() < 0.4:
        hit = [image for image in _of(theirs, "train", "val") if image.key in by_trunk]
        code = _train(Path("features"), Path("above"), folds=2)
        if hit:
            return "folds refused", [] if code == 2 else [f"folds end with {code}"]
        return "folds", _check_folds(Path("above"), code, theirs, below, is_unknown=is_unknown)
    code = _train(Path("features"), Path("above"))
    seen = [*_of(theirs, "train", "val"), *below]
    test, known = _of(theirs, "test"), _count(seen, theirs)
    by_trunk &= {image.key for image in test}
    if code or (by_trunk and {image.key for image in test} <= known):
        right = code == 2 and by_trunk and {image.key for image in test} <= known
        return "nothing left", [] if right else [f"the run above ends with {code}"]
    problems = []
    if test:
        problems = _complaints(
            Path("above"), seen, theirs, test,
            is_measured=not by_trunk, is_own=True, is_unknown=is_unknown,
        )  # fmt: skip
    data, images = rng.choice([(first, ours), (second, theirs)])
    outcome, more = _evaluate(rng, Path("above"), data, seen, images, is_unknown=is_unknown)
    return f"run, {outcome}", problems + more


def _try_folds(rng: random.Random, first: Path, second: Path) -> tuple[str, list[str]]:
    code = _train(first, Path("folds"), folds=rng.choice((2, 3)))
    outcome = "refused" if code else "folds"
    problems = _check_folds(Path("folds"), code, _read(first))
    folds = sorted(Path("folds").glob("seed-*/fold-*"))
    if code or not folds:
        return outcome, problems
    run = rng.choice(folds)
    ours, theirs = _read(first), _read(second)
    listed = set(pq.read_table(run / "seen.parquet")["key"].to_pylist())
    seen = [image for image in ours if image.key in listed]
    shutil.copytree(run, "fold")
    outcome, more = _evaluate(rng, Path("fold"), second, seen, theirs)
    return f"fold, {outcome}", problems + more


def _check_folds(
    workdir: Path,
    code: int,
    images: Sequence[_Image],
    below: Sequence[_Image] = (),
    *,
    is_unknown: bool = False,
) -> list[str]:
    """Looks at the table of each fold, and at the page of all."""
    if code:
        # There are too few groups for so many folds.
        return [] if code == 2 else [f"the cross-validation ended with {code}"]
    everyone = _of(images, "train", "val")
    problems = []
    for folder in sorted(workdir.glob("seed-*/fold-*")):
        judged = {row["key"] for row in marked_images.rows_of(folder)}
        groups = {image.group for image in everyone if image.key in judged}
        wanted = {image.key for image in everyone if image.group not in groups}
        table = pq.read_table(folder / "seen.parquet").to_pylist()
        if {row["key"] for row in table if row["part"] == "train"} != wanted:
            problems.append(f"{folder}: seen.parquet lists other images")
    originals = [image for image in everyone if not image.is_copy]
    return problems + _complaints(
        workdir, below, images, originals,
        is_measured=True, is_own=True, is_unknown=is_unknown, is_folds=True,
    )  # fmt: skip
