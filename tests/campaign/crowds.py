"""The search for near duplicates in crowds of like pictures, against a comparison of every pair.

Pictures of one coarse structure, in one frame of a screen, padded or of nothing in common, among
which copies are planted: saved again, brightened or resized. All of them must be found, and no
others, unless the build says that its search is not complete.
"""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import builds
import numpy as np
import pyarrow.parquet as pq
from dataset_factory import stored
from image_files import encoded, write_tree
from PIL import Image
from scipy import ndimage, sparse

from campaign.case import Case
from tfrecord_io.auditing import twins

_SPLITS = ("test", "val", "train")  # the most protected first
#: Nearer to the least similarity of two copies, the roundings of the two comparisons decide.
_UNCLEAR = 0.02
#: Flipped bits up to which all pairs must be found.
_SURELY_FOUND = 20


def try_case(case: Case) -> str:
    return case.pick(_try_hashes, *[_try_pictures] * 3)(case)


def _try_hashes(case: Case) -> str:
    """Searches more hashes than are all compared, crowds among them."""
    generator = np.random.default_rng(case.rng.getrandbits(32))
    hashes = generator.integers(0, 256, (case.rng.randrange(5_001, 8_000), 32), np.uint8)
    sizes = case.rng.choices((3, 8, 9, 10, 12, 20, 50, 200, 800), k=case.rng.randrange(1, 7))
    free = iter(generator.permutation(len(hashes)))
    for size in sizes:
        rows, num_bits = list(itertools.islice(free, size)), case.pick(2, 4, 7, 10)
        hashes[rows] = [_flipped(generator, hashes[rows[0]], num_bits) for _ in rows]
    for row in itertools.islice(free, 100):
        copied = hashes[generator.integers(len(hashes))]
        hashes[row] = _flipped(generator, copied, case.rng.randrange(_SURELY_FOUND))
    case.what = f"{len(hashes)} hashes, crowds of {sizes}"
    pairs, distances, complete = twins.find_pairs(hashes)
    found, words, wanted = pairs @ (len(hashes), 1), hashes.view(np.uint64), []
    for row in range(len(hashes) - 1):
        apart = np.bitwise_count(words[row] ^ words[row + 1 :]).sum(1, np.int64)
        near = np.flatnonzero(apart <= twins.MAX_DISTANCE)
        wanted.append(np.stack([row * len(hashes) + row + 1 + near, apart[near]]))
    codes, apart = np.concatenate(wanted, axis=1)
    places = np.minimum(np.searchsorted(codes, found), len(codes) - 1)
    is_right = (codes[places] == found) & (apart[places] == distances)
    case.require(is_right.all(), f"found, but not so near: {pairs[~is_right][:9].tolist()}")
    missed = np.setdiff1d(codes[apart <= _SURELY_FOUND], found)
    missed = np.stack(np.divmod(missed, len(hashes)), 1).tolist()
    case.require(not (missed and complete), f"{len(missed)} pairs are not found: {missed[:9]}")
    return f"hashes, {'all' if complete else 'not all'} compared"


def _flipped(generator: np.random.Generator, bits: np.ndarray, num_bits: int) -> np.ndarray:
    flips = np.zeros(256, np.uint8)
    flips[generator.choice(256, num_bits, replace=False)] = 1
    return bits ^ np.packbits(flips)


def _try_pictures(case: Case) -> str:
    """Builds a dataset of pictures with planted copies, and looks at its groups and findings."""
    generator = np.random.default_rng(case.rng.getrandbits(32))
    kind, side = case.pick("plain", "crowd", "frame", "padded"), case.pick(64, 64, 96)
    drops, share = case.happens(0.4), case.pick(0, 0.1, 0.3, 0.6)
    files, families = _draw(case, generator, kind, share)
    flags = ["--leaks=drop"] * drops + ["--fit=pad"] * (kind == "padded")
    case.what = f"{len(files)} {kind} pictures at {side}, {share:.0%} are copies, {flags}"
    source = write_tree(case.folder / "scans", files)
    data = builds.build_here(source, case.folder / "out", f"--image_size={side}", *flags)
    rows = pq.read_table(data / "examples.parquet").to_pylist()
    measures = json.loads((data / "manifest.json").read_text())["audit"]["measures"]
    splits = {row["path"]: row["split"] for row in rows}
    if drops:
        _judge_drops(case, set(files) - splits.keys(), splits, families)
    names = [row["path"] for row in rows]
    alike = _similarities(data, rows, is_padded=kind == "padded")
    least = np.interp(side, (64, 224), (0.93, 0.80))
    same = np.array([[families[one] == families[other] for one in names] for other in names])
    np.fill_diagonal(alike, 0)
    np.fill_diagonal(same, False)
    if (np.abs(alike - least) < _UNCLEAR).any():
        return f"{kind}, unclear"
    case.require(not ((alike > least) & ~same).any(), "different pictures count as copies")
    pairs = np.argwhere(np.triu(alike > least))
    # The build counts pairs of pictures whose pixels differ.
    places: dict[str, set[str]] = {}
    for row in rows:
        places.setdefault(row["pixels_xxh3"], set()).add(row["split"])
    pixels = [row["pixels_xxh3"] for row in rows]
    different = {frozenset((pixels[one], pixels[other])) for one, other in pairs}
    across = sum(len(set.union(*map(places.get, pair))) > 1 < len(pair) for pair in different)
    if not measures["near_duplicates_complete"]:
        return f"{kind}, not complete"
    case.compare("pairs across splits", {"": measures["near_duplicate_pairs"]}, {"": across})
    graph = sparse.coo_matrix((np.ones(len(pairs)), pairs.T), (len(rows), len(rows)))
    components = sparse.csgraph.connected_components(graph)[1]
    case.compare("groups", _first([row["group"] for row in rows]), _first(components.tolist()))
    return f"{kind}, {'copies' if len(pairs) else 'none'}"


def _draw(
    case: Case, generator: np.random.Generator, kind: str, share: float
) -> tuple[dict[str, bytes], dict[str, int]]:
    """Returns files by name, and the number of the picture of each."""
    size = (96, 96)
    coarse = np.kron(generator.integers(60, 180, (6, 6)), np.ones((16, 16)))
    coarse = ndimage.gaussian_filter(coarse, 12)
    frame = np.zeros(size)
    frame[:14] = frame[-14:] = generator.integers(0, 2, (14, 96)) * 120 + 100
    pictures: list[np.ndarray] = []
    files, families = {}, {}
    for number in range(case.rng.randrange(40, 130)):
        family, settings = len(pictures), {}
        if pictures and case.happens(share):
            family = case.rng.randrange(len(pictures))
            picture = pictures[family] * case.pick(1, 0.9) + case.pick(1, 9)
            settings = case.pick({}, {"file_format": "JPEG", "quality": 96})
        else:
            if kind == "padded":
                size = case.pick((96, 64), (64, 96), (80, 96), (96, 96))
            areas = np.kron(generator.integers(40, 180, (12, 12)), np.ones((8, 8)))
            picture = coarse if kind == "crowd" else areas[: size[0], : size[1]]
            grain = generator.normal(0, 14, size)
            if kind == "padded":  # coarse enough to be there in another size
                grain = ndimage.gaussian_filter(grain, 1) * 3
            picture = picture + grain
            if kind == "frame":
                picture = np.where(frame > 0, frame, picture)
            picture = np.clip(picture, 20, 235)
            pictures.append(picture)
        image = Image.fromarray(np.clip(picture, 1, 255).astype(np.uint8))
        if kind == "padded" and family < len(pictures) - 1 and case.happens(0.5):
            image = image.resize((2 * image.width, 2 * image.height), Image.Resampling.BICUBIC)
        label = case.pick("CNV", "NORMAL")
        name = f"{case.pick(*_SPLITS)}/{label}/picture {number}.png"
        files[name], families[name] = encoded(image, **settings), family
    for split, label in itertools.product(_SPLITS, ("CNV", "NORMAL")):  # so that none is empty
        name = f"{split}/{label}/own.png"
        files[name] = encoded(generator.integers(1, 255, size).astype(np.uint8))
        families[name] = len(pictures) + len(families)
    return files, families


def _judge_drops(
    case: Case, dropped: set[str], splits: Mapping[str, str], families: Mapping[str, int]
) -> None:
    """Requires that of copies in several splits those in the most protected one are left."""
    places: dict[int, set[str]] = {}
    for name, family in families.items():
        places.setdefault(family, set()).add(name.split("/")[0])
    least = {family: min(found, key=_SPLITS.index) for family, found in places.items()}
    wanted = {name for name, family in families.items() if name.split("/")[0] != least[family]}
    case.compare("dropped", dict.fromkeys(dropped), dict.fromkeys(wanted))


def _similarities(data: Path, rows: list[dict], *, is_padded: bool) -> np.ndarray:
    """Returns the correlation of the fine detail of all pairs, without what all of them share."""
    pictures = {}
    for split in {row["split"] for row in rows}:
        images, _, keys = stored(data, split)
        pictures |= dict(zip(keys, images[..., 0], strict=True))
    details = np.array([_detail(pictures[row["key"]], is_padded=is_padded) for row in rows])
    if len(rows) >= 32:
        details -= details.mean(0)
    details /= np.linalg.norm(details, axis=1, keepdims=True)
    return details @ details.T


def _detail(image: np.ndarray, *, is_padded: bool) -> np.ndarray:
    if is_padded:
        image = image[image.any(1)][:, image.any(0)]
    small = Image.fromarray(image).resize((128, 128), Image.Resampling.BOX)
    values = np.asarray(small, np.float32)
    values = values - ndimage.uniform_filter(values, 5, mode="nearest")
    values -= values.mean()
    return values.ravel() / np.linalg.norm(values)


def _first(groups: list) -> dict[int, int]:
    """Returns of each row the first one of its group."""
    return {row: groups.index(group) for row, group in enumerate(groups)}
