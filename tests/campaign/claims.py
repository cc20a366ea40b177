"""What pages say a network has seen, against a count of shared pixels and patients made here.

Each case draws scans with copies and unknown patients, builds one or two datasets of them, trains,
and measures: by evaluation, or by folds. The count asks nothing of `train.data`.
"""

import contextlib
import dataclasses
import gc
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import builds
import image_files
import marked_images
import numpy as np
import pages
import pyarrow.parquet as pq
from dataset_factory import stored
from scipy import sparse

from campaign.case import Case
from pipelines.errors import BuildError
from tfrecord_io.terminal.errors import UserError

_LABELS = ("CNV", "NORMAL")
_SPLITS = ("train", "val", "test")
_CLAIMS = ("nearly the same pixels", "held out", "other patients")

#: A network of a second; the claims do not depend on what it learns.
_SETTINGS = {"epochs": 1, "replica_batch_size": 2, "bootstrap_samples": 0}


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

    seen: Sequence[_Image] = ()
    is_unknown: bool = False


def try_case(case: Case) -> str:
    """Builds, trains and measures in a random way."""
    import keras

    keras.utils.clear_session()
    gc.collect()
    scans = _draw_scans(case)
    case.what = f"{len(scans)} scans"
    way = case.pick(*[_try_evaluation] * 5, *[_try_folds] * 2)
    with contextlib.chdir(case.folder):
        first = _build(case, scans, "first")
        second = first if case.happens(0.2) else _build(case, scans, "second")
        outcome = way(case, first, second)
    return f"{way.__name__.removeprefix('_try_')}: {outcome}"


# ---- scans and datasets


def _draw_scans(case: Case) -> dict[str, _Scan]:
    """Returns scans by name, the labels in turn."""
    num_patients, unknown = case.rng.randint(8, 16), case.pick(0, 0, 0, 0.1)
    copies = case.pick(0, 0.1, 0.2)
    sites = [case.pick("london", "zurich") for _ in range(num_patients)]
    scans: dict[str, _Scan] = {}
    for number in range(case.rng.randint(36, 60)):
        person = case.rng.randrange(num_patients)
        content = image_files.png(case.rng.randrange(1 << 30), 12, 12)
        if scans and case.happens(copies):
            content = case.pick(*scans.values()).content
        # Both sites count their patients from 0.
        facts = _LABELS[number % 2], str(person // 2), sites[person], case.happens(unknown)
        scans[f"{number}.png"] = _Scan(content, *facts)
    return scans


def _build(case: Case, scans: Mapping[str, _Scan], name: str) -> Path:
    """Builds a dataset of all scans or some, with what one hospital knows of them."""
    share = case.pick(0.7, 1)
    chosen = {path: scan for path, scan in scans.items() if case.happens(share)}
    knows_patients, knows_sites = case.happens(0.9), case.happens(0.4)
    prefix = f"{name}-" if case.happens(0.2) else ""
    by = case.pick("patient", "image", "command")
    of_person = {s.patient: case.rng.choices(_SPLITS, (5, 2, 3))[0] for s in scans.values()}
    flags = [f"--variants={case.pick(0, 0, 1, 2)}"]
    flags += case.pick([], [], [], ["--duplicates=drop"], ["--leaks=drop"])
    if by == "command":
        shares = "--split_fractions=train=0.5,val=0.2,test=0.3"
        flags += ["--splits=auto", shares, f"--split_seed={case.rng.randrange(9)}"]
    rows = []
    for path, scan in chosen.items():
        row = {"path": path, "label": scan.label}
        if knows_patients:
            row["patient"] = "" if scan.is_unknown else prefix + scan.patient
        if knows_sites:
            row["site"] = scan.site
        if by != "command":
            row["split"] = of_person[scan.patient] if by == "patient" else case.pick(*_SPLITS)
        rows.append(row)
    contents = {path: scan.content for path, scan in chosen.items()}
    source = image_files.write_tree(Path(f"{name}-scans"), contents)
    table = builds.write_csv(Path(f"{name}.csv"), rows)
    try:
        return builds.build_here(source, Path(name), f"--labels={table}", "--image_size=12", *flags)
    except (UserError, BuildError):
        # The seed leaves a split empty, or nothing is left of a class.
        return _build(case, scans, f"{name}x")


def _read(data: Path) -> list[_Image]:
    """Returns the examples of a dataset with what belongs together."""
    rows, pixels = builds.rows_of(data), {}
    for split in {row["split"] for row in rows}:
        images, _, keys = stored(data, split)
        pixels |= {(split, key): image for key, image in zip(keys, images, strict=True)}
    named = ("key", "split", "path", "patient")
    images = [
        _Image(
            **{name: row[name] for name in named},
            pixels=pixels[row["split"], row["key"]].tobytes(),
            site=row.get("site"),
            is_copy=row["variant"] > 0,
        )
        for row in rows
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
    for image, group in zip(images, groups, strict=False):
        image.group = int(group)
    # The patient of a group is the one whose name is first.
    known = sorted((i for i in images if i.patient), key=lambda image: image.patient, reverse=True)
    people = {image.group: _person(image) for image in known}
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


def _judge(
    case: Case, folder: Path, network: _Network, images: Sequence[_Image],
    part: Sequence[_Image], way: str, *, is_measured: bool = True,
) -> None:  # fmt: skip
    """Compares metrics.json and the page of a measurement with the count.

    Args:
        case: the case.
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
    metrics = json.loads((folder / "metrics.json").read_text())
    wanted = {
        "num_examples": len(rest),
        "seen_images": len(hit),
        "seen_patients": len({image.patient for image in hit} - {None}),
    }
    case.compare(f"{folder}, counted", {name: metrics.get(name) for name in wanted}, wanted)
    page = pages.words((folder / "report.html").read_text())
    is_claimed = not network.is_unknown and way != "val" and not (hit and is_measured)
    claims = ["no image with the same pixels"] * is_claimed
    if not any(image.patient is None for image in (*rest, *seen)):
        claims += ["no patient of the same name"] * is_claimed
    found = {
        # Images of 12 pixels are too small to look for near copies.
        "in doubt": "t cannot be known whether the network has seen" in page,
        "claims": re.findall("(no image with[^.,]*|no patient of[^.,]*)", page),
        "what is not proven": any(claim in page for claim in _CLAIMS),
    }
    right = {"in doubt": True, "claims": claims, "what is not proven": False}
    case.compare(f"{folder}, the page", found, right)
    said = f"{len(hit)} of these images" if is_measured else f"{len(hit)} further image"
    case.require(not hit or said in page, f"{folder}: the page does not say {said!r}")
    is_told = f"including {len(hit)} that" in page.partition(". ")[0]
    is_due = way == "evaluation" and is_measured
    case.require(is_told or not is_due, f"{folder}: the first sentence does not say what was seen")


# ---- ways


def _train(data: Path, workdir: Path, **fields: object) -> int:
    return marked_images.train(data, workdir, **_SETTINGS, **fields)


def _require_listed(case: Case, run: Path, wanted: set[str], *parts: str) -> None:
    """Requires that the table of a run lists these images in these parts, and no others."""
    table = pq.read_table(run / "seen.parquet").to_pylist()
    listed = {f"{row['part']} {row['key']}" for row in table if row["part"] in parts}
    case.compare(f"{run}: seen.parquet", dict.fromkeys(listed), dict.fromkeys(wanted))


def _names(images: Iterable[_Image]) -> set[str]:
    return {f"{image.split} {image.key}" for image in images}


def _try_evaluation(case: Case, first: Path, second: Path) -> str:
    ours, run = _read(first), Path("run")
    seen, test, val = (_of(ours, *splits) for splits in (("train", "val"), ("test",), ("val",)))
    if len(_of(ours, "train")) < 2:
        return "no training images"
    case.require(not _train(first, run), "the training failed")
    _require_listed(case, run, _names(seen), *_SPLITS)
    if test:
        _judge(case, run, _Network(seen), ours, test, "test")
    elif val:
        _judge(case, run, _Network(_of(ours, "train")), ours, val, "val")
    network = _Network(seen)
    if case.happens(0.15):
        (run / "seen.parquet").unlink()
        network = _Network(is_unknown=True)
    return _evaluate(case, run, second, network, _read(second))


def _evaluate(
    case: Case, run: Path, data: Path, network: _Network, images: Sequence[_Image]
) -> str:
    split, includes = case.pick(*_SPLITS, "test"), case.happens(0.25)
    part = [image for image in _of(images, split) if not image.is_copy]
    if not part:
        return "empty split"
    flags = ["--output=measured", f"--split={split}", *["--include_seen"] * includes]
    code = marked_images.evaluated(run, data, "--bootstrap_samples=0", *flags)
    is_empty = not includes and {image.key for image in part} <= _count(network.seen, images)
    case.require(code == 2 * is_empty, f"it ends with {code}, nothing left: {is_empty}")
    if code or is_empty:
        return "nothing left"
    folder = Path("measured")
    _judge(case, folder, network, images, part, "evaluation", is_measured=includes)
    return "measured"


def _try_folds(case: Case, first: Path, second: Path) -> str:
    ours, code = _read(first), _train(first, Path("folds"), folds=case.pick(2, 3))
    _judge_folds(case, Path("folds"), code, ours)
    folds = sorted(Path("folds").glob("seed-*/fold-*"))
    if code or not folds:
        return "refused" if code else "folds"
    run = case.pick(*folds)
    listed = set(pq.read_table(run / "seen.parquet")["key"].to_pylist())
    seen = [image for image in ours if image.key in listed]
    shutil.copytree(run, "fold")
    return f"fold, {_evaluate(case, Path('fold'), second, _Network(seen), _read(second))}"


def _judge_folds(case: Case, workdir: Path, code: int, images: Sequence[_Image]) -> None:
    """Looks at the table of each fold, and at the page of all."""
    if code:
        # There are too few groups for so many folds.
        case.require(code == 2, f"the cross-validation ended with {code}")
        return
    everyone = _of(images, "train", "val")
    for folder in sorted(workdir.glob("seed-*/fold-*")):
        judged = {row["key"] for row in marked_images.rows_of(folder)}
        groups = {image.group for image in everyone if image.key in judged}
        learned = {f"train {image.key}" for image in everyone if image.group not in groups}
        _require_listed(case, folder, learned, "train")
    originals = [image for image in everyone if not image.is_copy]
    _judge(case, workdir, _Network(), images, originals, "folds")
