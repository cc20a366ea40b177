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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from unittest import mock

import builds
import image_files
import marked_images
import numpy as np
import pyarrow.parquet as pq
from scipy import sparse

from campaign.processes import Outcome
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


@dataclasses.dataclass(frozen=True)
class _Network:
    """What a network has seen, and whether somebody who measures it cannot know that."""

    seen: Sequence[_Image]
    is_unknown: bool = False


def try_case(rng: random.Random, folder: Path) -> Outcome:
    """Builds, trains and measures in a random way."""
    import keras

    keras.utils.clear_session()
    gc.collect()
    scans = _draw_scans(rng)
    (way,) = rng.choices((_try_evaluation, _try_trunk, _try_folds), weights=(5, 3, 2))
    # Charts take half of the time and claim nothing; one that cannot be drawn costs a warning.
    undrawn = mock.patch("matplotlib.figure.Figure.savefig", side_effect=OSError("not drawn"))
    with contextlib.chdir(folder), undrawn:
        first = _build(rng, scans, "first")
        second = first if rng.random() < 0.2 else _build(rng, scans, "second")
        outcome, problems = way(rng, first, second)
    return f"{way.__name__.removeprefix('_try_')}: {outcome}", problems, f"{len(scans)} scans"


# ---- scans and datasets


def _draw_scans(rng: random.Random) -> dict[str, _Scan]:
    """Returns scans by name, the labels in turn."""
    num_patients, unknown = rng.randint(8, 16), rng.choice((0, 0, 0, 0.1))
    copies = rng.choice((0, 0.1, 0.2))
    sites = [rng.choice(("london", "zurich")) for _ in range(num_patients)]
    scans: dict[str, _Scan] = {}
    for number in range(rng.randint(36, 60)):
        person = rng.randrange(num_patients)
        content = image_files.png(rng.randrange(1 << 30), 12, 12)
        if scans and rng.random() < copies:
            content = rng.choice(list(scans.values())).content
        # Both sites count their patients from 0.
        facts = _LABELS[number % 2], str(person // 2), sites[person], rng.random() < unknown
        scans[f"{number}.png"] = _Scan(content, *facts)
    return scans


def _build(rng: random.Random, scans: Mapping[str, _Scan], name: str) -> Path:
    """Builds a dataset of all scans or some, with what one hospital knows of them."""
    share = rng.choice((0.7, 1))
    chosen = {path: scan for path, scan in scans.items() if rng.random() < share}
    knows_patients, knows_sites = rng.random() < 0.9, rng.random() < 0.4
    prefix = f"{name}-" if rng.random() < 0.2 else ""
    by = rng.choice(("patient", "image", "command"))
    of_person = {scan.patient: rng.choices(_SPLITS, (5, 2, 3))[0] for scan in scans.values()}
    flags = [f"--variants={rng.choice((0, 0, 1, 2))}"]
    flags += rng.choice(([], [], [], ["--duplicates=drop"], ["--leaks=drop"]))
    if by == "command":
        shares = "--split_fractions=train=0.5,val=0.2,test=0.3"
        flags += ["--splits=patient", shares, f"--split_seed={rng.randrange(9)}"]
    rows = []
    for path, scan in chosen.items():
        row = {"path": path, "label": scan.label}
        if knows_patients:
            row["patient"] = "" if scan.is_unknown else prefix + scan.patient
        if knows_sites:
            row["site"] = scan.site
        if by != "command":
            row["split"] = of_person[scan.patient] if by == "patient" else rng.choice(_SPLITS)
        rows.append(row)
    contents = {path: scan.content for path, scan in chosen.items()}
    source, table = image_files.write_tree(Path(f"{name}-scans"), contents), Path(f"{name}.csv")
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
    for split in {row["split"]: None for row in rows}:
        stored = MappedDataset(data, split)
        places = np.arange(len(stored))
        pixels = dict(zip(stored.keys(places), stored[places][0], strict=True))
        images += [
            _Image(
                key=row["key"],
                split=split,
                path=row["path"],
                pixels=pixels[row["key"]].tobytes(),
                patient=row["patient"],
                site=row.get("site"),
                is_copy=row["variant"] > 0,
            )
            for row in rows
            if row["split"] == split
        ]
    _join(images)
    return images


def _join(images: Sequence[_Image]) -> None:
    """Numbers the groups: images share a patient, a file, or the pixels, in any number of steps."""
    links: dict[tuple[str, object], int] = {}
    ends = []
    for place, image in enumerate(images):
        shared = {"path": image.path, "patient": image.patient, "pixels": image.pixels}
        if image.is_copy:
            del shared["pixels"]
        for link in shared.items():
            if link[1] is not None:
                ends.append((place, len(images) + links.setdefault(link, len(links))))
    size = len(images) + len(links)
    graph = sparse.coo_matrix((np.ones(len(ends)), np.transpose(ends)), (size, size))
    _, groups = sparse.csgraph.connected_components(graph, directed=False)
    known = sorted((image for image in images if image.patient), key=lambda image: image.patient)
    for image, group in zip(images, groups, strict=False):
        image.group = int(group)
    people = {image.group: _person(image) for image in reversed(known)}
    for image in images:
        image.person = people.get(image.group)


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
    network: _Network,
    images: Sequence[_Image],
    part: Sequence[_Image],
    way: str,
    *,
    is_measured: bool = True,
) -> list[str]:
    """Compares metrics.json and the page of a measurement with the count.

    Args:
        folder: of the measurement.
        network: that was measured.
        images: of the dataset.
        part: that was to be measured.
        way: `test` or `val` of a run itself, `folds` or `evaluation`.
        is_measured: whether seen images are measured, too.
    """
    seen = network.seen
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
    is_doubtful = network.is_unknown or any(image.patient is None for image in (*rest, *seen))
    if is_doubtful != ("t cannot be known whether the network has seen" in page):
        problems.append(f"{folder}: the page is {'not ' * is_doubtful}in doubt")
    is_proven = not is_doubtful and way != "val" and not (hit and is_measured)
    if way == "folds":
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
    is_told = f"including {len(hit)} that" in page.partition(". ")[0]
    if way == "evaluation" and is_measured and not is_told:
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
        return problems + _complaints(workdir, _Network(seen), images, test, "test")
    if val := _of(images, "val"):
        return problems + _complaints(workdir, _Network(_of(seen, "train")), images, val, "val")
    return problems


def _try_evaluation(rng: random.Random, first: Path, second: Path) -> tuple[str, list[str]]:
    ours, theirs = _read(first), _read(second)
    seen = _of(ours, "train", "val")
    if len(_of(ours, "train")) < 2:
        return "no training images", []
    if code := _train(first, Path("run")):
        return "training failed", [f"the training ended with {code}"]
    problems = _check_run(Path("run"), seen, ours)
    network = _Network(seen)
    if rng.random() < 0.15:
        Path("run/seen.parquet").unlink()
        network = _Network([], is_unknown=True)
    outcome, more = _evaluate(rng, Path("run"), second, network, theirs)
    return outcome, problems + more


def _evaluate(
    rng: random.Random, run: Path, data: Path, network: _Network, images: Sequence[_Image]
) -> tuple[str, list[str]]:
    from train import evaluate

    split, includes = rng.choice([*_SPLITS, "test"]), rng.random() < 0.25
    part = [image for image in _of(images, split) if not image.is_copy]
    if not part:
        return "empty split", []
    flags = ["--include_seen"] * includes
    words = [f"--model={run}", f"--data={data}", f"--split={split}", "--bootstrap_samples=0"]
    code = evaluate.main([*words, "--output=measured", *flags])
    is_empty = not includes and {image.key for image in part} <= _count(network.seen, images)
    if code or is_empty:
        right = code == 2 and is_empty
        return "nothing left", [] if right else [f"it ends with {code}, nothing left: {is_empty}"]
    return "measured", _complaints(
        Path("measured"), network, images, part, "evaluation", is_measured=includes
    )


def _try_trunk(rng: random.Random, first: Path, second: Path) -> tuple[str, list[str]]:
    """Trains above a trunk that was cut from another run, and evaluates that."""
    import keras

    from pipelines import extract_features
    from train import trunk

    ours, theirs = _read(first), _read(second)
    if min(len(_of(images, "train")) for images in (ours, theirs)) < 2:
        return "no training images", []
    if code := _train(first, Path("run")):
        return "training failed", [f"the training ended with {code}"]
    model = keras.saving.load_model("run/export/model.keras", compile=False)
    layers = [layer.name for layer in model.get_layer("convnet").layers]
    layer = next(name for name in layers if "pooling" in name)
    trunk.write_trunk(str(first), "run", layer, Path("trunk.keras"))
    below = _Network(_of(ours, "train", "val"))
    if rng.random() < 0.2:
        Path("trunk.seen.parquet").unlink()
        below = _Network([], is_unknown=True)
    words = [f"--data={second}", "--trunk=trunk.keras", "--output=features", builds.IN_MEMORY]
    if code := extract_features.main(words):
        return "extraction failed", [f"the extraction ended with {code}"]
    by_trunk = _count(below.seen, theirs)
    if rng.random() < 0.4:
        hit = [image for image in _of(theirs, "train", "val") if image.key in by_trunk]
        code = _train(Path("features"), Path("above"), folds=2)
        if hit:
            return "folds refused", [] if code == 2 else [f"folds end with {code}"]
        return "folds", _check_folds(Path("above"), code, theirs, below)
    code = _train(Path("features"), Path("above"))
    network = dataclasses.replace(below, seen=[*_of(theirs, "train", "val"), *below.seen])
    test = _of(theirs, "test")
    keys = {image.key for image in test}
    is_empty = by_trunk & keys and keys <= _count(network.seen, theirs)
    if code or is_empty:
        right = code == 2 and is_empty
        return "nothing left", [] if right else [f"the run above ends with {code}"]
    problems = []
    if test:
        is_measured = not by_trunk & keys
        problems = _complaints(
            Path("above"), network, theirs, test, "test", is_measured=is_measured
        )
    data, images = rng.choice([(first, ours), (second, theirs)])
    outcome, more = _evaluate(rng, Path("above"), data, network, images)
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
    outcome, more = _evaluate(rng, Path("fold"), second, _Network(seen), theirs)
    return f"fold, {outcome}", problems + more


def _check_folds(
    workdir: Path, code: int, images: Sequence[_Image], below: _Network = _Network(())
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
    return problems + _complaints(workdir, below, images, originals, "folds")
