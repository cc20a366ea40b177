"""What pages say a network has seen, against a count of shared pixels and patients made here.

Each case draws scans with copies and unknown patients, builds a dataset, trains, and measures by
folds, or on some other datasets: of other seeds, sizes, names of patients, or anonymous. The count
reads shards and tables with NumPy and pyarrow. One in ten results is altered: a lie must be found.
"""

import contextlib
import dataclasses
import gc
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import builds
import marked_images
import numpy as np
import pages
import pyarrow.parquet as pq
from dataset_factory import stored
from image_files import encoded, write_tree
from scipy import sparse

from campaign.case import Case
from pipelines.errors import BuildError
from tfrecord_io.terminal.errors import UserError

_LABELS = ("CNV", "NORMAL")
_SPLITS = ("train", "val", "test")
_CLAIMS = ("held out", "other patients")
_SAME, _NEARLY, _NAMES = (
    "no image with the same pixels",
    "no image with the same or nearly the same pixels",
    "no patient of the same name",
)
#: Different scans correlate by less than 0.7 when they are stored, copies by more than 0.97.
_ALIKE = 0.9
#: A network of a second; the claims do not depend on what it learns.
_SETTINGS = {"epochs": 1, "replica_batch_size": 2, "bootstrap_samples": 0}
_LIES = 0.1
#: How many other datasets each network is measured on.
_MOST_PAIRS = 5


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
class _Data:
    """A dataset and how its patients got their names: from the table or not, by which secret."""

    path: Path
    images: Sequence[_Image]
    naming: tuple[bool, str]
    side: int

    def of(self, *splits: str) -> list[_Image]:
        return [image for image in self.images if image.split in splits]


@dataclasses.dataclass(frozen=True)
class _Network:
    """What a network has seen of its data, and whether somebody who measures it can know that."""

    data: _Data
    seen: Sequence[_Image] = ()
    is_unknown: bool = False


def try_case(case: Case) -> str:
    """Builds, trains and measures in a random way."""
    import keras

    keras.utils.clear_session()
    gc.collect()
    scans, side = _draw_scans(case), case.pick(12, 64)
    way = case.pick(*[_try_evaluations] * 5, _try_folds)
    with contextlib.chdir(case.folder):
        for name in ("ours", "theirs"):
            secret = Path(f"{name}-secret", "secret.txt")
            write_tree(Path(), {str(secret): case.rng.randbytes(32).hex().encode()})
        outcome = way(case, scans, _build(case, scans, "first", side))
    case.what = f"{len(scans)} scans of {side} pixels{case.what}"
    return f"{way.__name__.removeprefix('_try_')}: {outcome}, {case.what.count('a lie:')} lies"


# ---- scans and datasets


def _draw_scans(case: Case) -> dict[str, _Scan]:
    """Returns scans by name, the labels in turn."""
    num_patients, unknown = case.rng.randint(8, 16), case.pick(0, 0, 0, 0.1)
    copies, generator = case.pick(0, 0.1, 0.2), np.random.default_rng(case.rng.getrandbits(32))
    sites = [case.pick("london", "zurich") for _ in range(num_patients)]
    scans: dict[str, _Scan] = {}
    pictures = []
    for number in range(case.rng.randint(36, 60)):
        person = case.rng.randrange(num_patients)
        picture, quality = _drawn(generator), 0
        if pictures and case.happens(copies):
            picture, quality = pictures.pop(case.rng.randrange(len(pictures))), case.pick(0, 96)
        else:
            pictures.append(picture)
        content = encoded(picture)
        if quality:  # saved again, and somewhat brighter
            content = encoded(picture // 8 * 7 + 30, "JPEG", quality=quality)
        # Both sites count their patients from 0.
        facts = _LABELS[number % 2], str(person // 2), sites[person], case.happens(unknown)
        name = "unknown" if facts[-1] else f"p{facts[1]}"
        scans[f"{name}_{number}.png"] = _Scan(content, *facts)
    return scans


def _drawn(generator: np.random.Generator) -> np.ndarray:
    """Returns a picture of large areas and fine grain, uint8 [72, 72]."""
    areas = np.kron(generator.integers(40, 200, (9, 9)), np.ones((8, 8)))
    return np.clip(areas + generator.normal(0, 15, areas.shape), 0, 255).astype(np.uint8)


def _build(case: Case, scans: Mapping[str, _Scan], name: str, side: int) -> _Data:
    """Builds a dataset of all scans or some, with what one hospital knows of them."""
    share = case.pick(0.4, 0.7, 1)
    chosen = {path: scan for path, scan in scans.items() if case.happens(share)}
    # What names the patients: a table, nothing, or the names of files.
    way = case.pick(*["table"] * 6, "nobody", "files", "files")
    knows_sites, secret = case.happens(0.4), case.pick(*[""] * 5, "ours", "ours", "theirs")
    prefix = f"{name}-" if case.happens(0.2) else ""
    by = case.pick("patient", "image", "command")
    of_person = {s.patient: case.rng.choices(_SPLITS, (5, 2, 3))[0] for s in scans.values()}
    flags = [f"--image_size={side}", f"--variants={case.pick(0, 0, 1, 2)}"]
    flags += case.pick([], [], [], ["--duplicates=drop"], ["--leaks=drop"])
    flags += [f"--anonymize={secret}-secret/secret.txt"] * bool(secret)
    flags += ["--group_regex=^p([0-9]+)_"] * (way == "files")
    if by == "command":
        shares = "--split_fractions=train=0.5,val=0.2,test=0.3"
        flags += ["--splits=auto", shares, f"--split_seed={case.rng.randrange(9)}"]
    rows = []
    for path, scan in chosen.items():
        row = {"path": path, "label": scan.label}
        if way == "table":
            row["patient"] = "" if scan.is_unknown else prefix + scan.patient
        if knows_sites:
            row["site"] = scan.site
        if by != "command":
            row["split"] = of_person[scan.patient] if by == "patient" else case.pick(*_SPLITS)
        rows.append(row)
    contents = {path: scan.content for path, scan in chosen.items()}
    source = write_tree(Path(f"{name}-scans"), contents)
    table = builds.write_csv(Path(f"{name}.csv"), rows)
    try:
        data = builds.build_here(source, Path(name), f"--labels={table}", *flags)
    except (UserError, BuildError):
        # The seed leaves a split empty, or nothing is left of a class.
        return _build(case, scans, f"{name}x", side)
    return _Data(data, _read(data, side), (way == "files", secret), side)


def _read(data: Path, side: int) -> list[_Image]:
    """Returns the examples of a dataset with what belongs together."""
    rows, pixels = pq.read_table(data / "examples.parquet").to_pylist(), {}
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
    _join(images, side)
    return images


def _are_copies(ours: Sequence[_Image], theirs: Sequence[_Image], side: int) -> np.ndarray:
    """Tells which pictures are the same, or nearly where that is looked for, [ours, theirs]."""
    first, second = (
        np.array([np.frombuffer(image.pixels, np.uint8) for image in images], np.float64)
        for images in (ours, theirs)
    )
    if side < 64:
        return (first[:, None] == second).all(-1)
    for values in (first, second):
        values -= values.mean(1, keepdims=True)
        values /= np.linalg.norm(values, axis=1, keepdims=True)
    return first @ second.T > _ALIKE


def _join(images: Sequence[_Image], side: int) -> None:
    """Numbers the groups: images share a patient, a file, or a picture, in any number of steps."""
    originals = [place for place, image in enumerate(images) if not image.is_copy]
    pictures = [images[place] for place in originals]
    ends = [
        (originals[one], originals[other])
        for one, other in np.argwhere(_are_copies(pictures, pictures, side))
    ]
    first: dict[tuple[str, object], int] = {}
    for place, image in enumerate(images):
        for link in (("path", image.path), ("patient", image.patient)):
            if link[1] is not None:
                ends.append((place, first.setdefault(link, place)))
    shape = (len(images), len(images))
    graph = sparse.coo_matrix((np.ones(len(ends)), np.transpose(ends)), shape)
    for image, group in zip(images, sparse.csgraph.connected_components(graph)[1], strict=True):
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


def _are_same(ours: tuple | None, theirs: tuple | None) -> bool:
    if ours is None or theirs is None or ours[0] != theirs[0]:
        return False
    return None in (ours[1], theirs[1]) or ours[1] == theirs[1]


def _count(network: _Network, data: _Data) -> set[str]:
    """Returns the keys of the images of a dataset that were seen."""
    if not (seen := network.seen):
        return set()
    people, groups = {_person(image) for image in seen}, {image.person for image in seen}
    is_copy = _are_copies(data.images, seen, data.side).any(1)
    direct = {
        image.group
        for image, is_alike in zip(data.images, is_copy, strict=True)
        if is_alike
        or any(_are_same(_person(image), person) for person in people)
        or any(_are_same(image.person, person) for person in groups)
    }
    return {image.key for image in data.images if image.group in direct}


def _judge(
    case: Case, folder: Path, network: _Network, data: _Data, part: Sequence[_Image], way: str,
    *, is_measured: bool = True,
) -> None:  # fmt: skip
    """Compares metrics.json and the page of a measurement with the count.

    Args:
        case: the case.
        folder: of the measurement.
        network: that was measured.
        data: that it was measured on.
        part: of the images, which was to be measured.
        way: `test` or `val` of a run itself, `folds` or `evaluation`.
        is_measured: whether seen images are measured, too.
    """
    known = _count(network, data)
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
    are_named = network.data.naming == data.naming
    are_named &= not any(image.patient is None for image in (*rest, *network.seen))
    is_large = data.side >= 64
    claims = [_NEARLY if is_large else _SAME] + [_NAMES] * are_named
    if network.is_unknown or way == "val" or (hit and is_measured):
        claims = []
    found = {
        "in doubt": "t cannot be known whether the network has seen" in page,
        "claims": re.findall("(no image with[^.,]*?pixels|no patient of the same name)", page),
        "what is not proven": any(claim in page for claim in _CLAIMS),
    }
    is_doubtful = network.is_unknown or not (is_large and are_named)
    right = {"in doubt": is_doubtful, "claims": claims, "what is not proven": False}
    case.compare(f"{folder}, the page", found, right)
    said = f"{len(hit)} of these images" if is_measured else f"{len(hit)} further image"
    case.require(not hit or said in page, f"{folder}: the page does not say {said!r}")
    is_told = (
        f"including {len(hit)} that" in page.partition("treated by it. ")[2].partition(". ")[0]
    )
    is_due = way == "evaluation" and is_measured and hit
    case.require(is_told or not is_due, f"{folder}: the first sentence does not say what was seen")


def _judge_or_lie(case: Case, folder: Path, *more: object, **options: object) -> None:
    """Judges a measurement, and then now and then alters it, which must be noticed."""
    _judge(case, folder, *more, **options)
    if case.happens(_LIES):
        lie = _lie(case, folder)
        altered = dataclasses.replace(case, problems=[])
        _judge(altered, folder, *more, **options)
        case.require(altered.problems, f"{folder}: no check found that {lie}")
        case.what += f"; a lie: {lie}"


def _lie(case: Case, folder: Path) -> str:
    """Has metrics.json or the page claim what is not so; returns what was changed."""
    metrics, page = folder / "metrics.json", folder / "report.html"
    text, facts = page.read_text(), json.loads(metrics.read_text())
    seen = facts["seen_images"]
    changes = {
        "t cannot be known whether the network has seen": "t is certain that it has not seen",
        _SAME: _NEARLY,
        _NEARLY: _SAME,
        f"{seen} further image": f"{seen - 1} further image",
        f"{seen} of these images": f"{seen - 1} of these images",
        f", including {seen} that": ", except 1 that",
    }
    if _NAMES not in text:
        changes['<dl class="tiles">'] = f'<p>It had seen {_NAMES}.</p><dl class="tiles">'
    possible = [before for before in changes if before in text]
    if not possible or case.happens(0.4):
        name = case.pick("num_examples", "seen_images", "seen_patients")
        facts[name] += case.pick(-1, 1)
        metrics.write_text(json.dumps(facts))
        return f"{name} is {facts[name]}"
    before = case.pick(*possible)
    page.write_text(text.replace(before, changes[before]))
    return f"the page has {changes[before]!r} instead of {before!r}"


# ---- ways


def _require_listed(case: Case, run: Path, wanted: set[str], *parts: str) -> None:
    """Requires that the table of a run lists these images in these parts, and no others."""
    table = pq.read_table(run / "seen.parquet").to_pylist()
    listed = {f"{row['part']} {row['key']}" for row in table if row["part"] in parts}
    case.compare(f"{run}: seen.parquet", dict.fromkeys(listed), dict.fromkeys(wanted))


def _names(images: Iterable[_Image]) -> set[str]:
    return {f"{image.split} {image.key}" for image in images}


def _try_evaluations(case: Case, scans: Mapping[str, _Scan], data: _Data) -> str:
    run, seen = Path("run"), data.of("train", "val")
    test, val = data.of("test"), data.of("val")
    if len(data.of("train")) < 2:
        return "no training images"
    code = marked_images.train(data.path, run, **_SETTINGS)
    case.require(not code, "the training failed")
    _require_listed(case, run, _names(seen), *_SPLITS)
    is_open = (run / "seen.parquet").stat().st_mode & 0o077
    case.require(not (data.naming[1] and is_open), "others can read what the network has seen")
    if test:
        _judge_or_lie(case, run, _Network(data, seen), data, test, "test")
    elif val:
        _judge_or_lie(case, run, _Network(data, data.of("train")), data, val, "val")
    network = _Network(data, seen)
    if case.happens(0.15):
        (run / "seen.parquet").unlink()
        network = _Network(data, seen=(), is_unknown=True)
    return _evaluate_some(case, run, scans, network)


def _evaluate_some(case: Case, run: Path, scans: Mapping[str, _Scan], network: _Network) -> str:
    """Measures a network on its own data and others; says on how many."""
    num_measured = 0
    for number in range(_MOST_PAIRS):
        data = network.data
        if number:
            data = _build(case, scans, f"second-{number}", network.data.side)
        num_measured += _evaluate(case, run, data, network, Path(f"measured-{number}"))
    return f"{num_measured} measured"


def _evaluate(case: Case, run: Path, data: _Data, network: _Network, output: Path) -> bool:
    split, includes = case.pick(*_SPLITS, "test"), case.happens(0.25)
    part = [image for image in data.of(split) if not image.is_copy]
    if not part:
        return False
    flags = [f"--output={output}", f"--split={split}", *["--include_seen"] * includes]
    code = marked_images.evaluated(run, data.path, "--bootstrap_samples=0", *flags)
    is_empty = not includes and {image.key for image in part} <= _count(network, data)
    case.require(code == 2 * is_empty, f"it ends with {code}, nothing left: {is_empty}")
    if code or is_empty:
        return False
    _judge_or_lie(case, output, network, data, part, "evaluation", is_measured=includes)
    return True


def _try_folds(case: Case, scans: Mapping[str, _Scan], data: _Data) -> str:
    folds = case.pick(2, 3)
    code = marked_images.train(data.path, Path("folds"), folds=folds, **_SETTINGS)
    if code:
        # There are too few groups for so many folds.
        case.require(code == 2, f"the cross-validation ended with {code}")
        return "refused"
    everyone = data.of("train", "val")
    folds = sorted(Path("folds").glob("seed-*/fold-*"))
    for folder in folds:
        judged = {row["key"] for row in marked_images.rows_of(folder)}
        groups = {image.group for image in everyone if image.key in judged}
        learned = {f"train {image.key}" for image in everyone if image.group not in groups}
        _require_listed(case, folder, learned, "train")
    originals = [image for image in everyone if not image.is_copy]
    _judge_or_lie(case, Path("folds"), _Network(data), data, originals, "folds")
    run = case.pick(*folds)
    listed = set(pq.read_table(run / "seen.parquet")["key"].to_pylist())
    seen = [image for image in data.images if image.key in listed]
    return f"fold, {_evaluate_some(case, run, scans, _Network(data, seen))}"
