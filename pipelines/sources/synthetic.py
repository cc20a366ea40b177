"""Draws OCT-like retinal B-scans, in the folder structure of the Kermany archive.

They replace the Kermany data in tests, benchmarks and first runs. The scans are drawn, not learnt,
and contain no patient's data. Every disease is drawn severe enough to be visible. **A model trained
on these scans says nothing about real eyes.**

Two traps of the archive are drawn too: class and image size are mildly correlated (512x512 is more
often DME and less compressed, a width of 1536 is more often CNV or NORMAL), and the scans of some
patients are rotated, with white corners. Patients have several scans, a few of them in two classes,
none in two splits. The classes of train are as unbalanced as those of the archive.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import PIL
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image

from pipelines import errors, workers
from pipelines.stores import file_lock
from tfrecord_io.files import read_json

Floats = NDArray[np.float64]
Greys = NDArray[np.float32]  # [height, width], grey levels

# Part of the completeness marker; raise it whenever the same arguments give different bytes.
GENERATOR_VERSION = 3
LABEL_NAMES = ("CNV", "DME", "DRUSEN", "NORMAL")
SPLITS = ("train", "val", "test")
ARCHIVE_FOLDER = "OCT2017 "  # with a trailing space, as in the Kermany archive
COMPLETE_MARKER = ".complete.json"
# 2018-01-01T00:00:00Z. Constant, because sizes and times of files identify a source.
FILE_MTIME = 1_514_764_800

# Images of each class in the real train folder (Kermany et al. 2018, Kaggle's edition).
_TRAIN_SIZES = (37_205, 11_348, 8_616, 26_315)
_HELD_OUT_SHARE = 0.1  # of all images, for each of val and test
_SECOND_CLASS_PROBABILITY = 0.06
_CHUNK_SIZE = 32
# With fewer images than this, starting processes costs more time than they save.
_SMALLEST_PARALLEL_RUN = 256

# Width and height in pixels and width of retina in mm, and how often each class has this format.
_FORMATS = (
    (512, 496, 6.0),
    (768, 496, 9.0),
    (1024, 496, 6.0),
    (1536, 496, 9.0),
    (512, 512, 6.0),
    (384, 496, 4.5),
)
_FORMAT_SHARES = {
    "CNV": (0.58, 0.24, 0.03, 0.10, 0.03, 0.02),
    "DME": (0.56, 0.18, 0.03, 0.03, 0.18, 0.02),
    "DRUSEN": (0.64, 0.23, 0.03, 0.05, 0.03, 0.02),
    "NORMAL": (0.62, 0.24, 0.02, 0.08, 0.03, 0.01),
}

# The healthy retina from its surface down: thickness in pixels of 3.87 um (typical for adults),
# grey level, share that is missing at the centre of the fovea, share of a swelling.
_LAYERS = (
    (8.0, 150, 0.97, 0.3),  # nerve fibres
    (20.0, 92, 0.95, 0.5),  # ganglion cells
    (10.0, 62, 0.93, 1.3),  # inner nuclear layer
    (7.0, 84, 0.80, 0.6),  # outer plexiform layer
    (20.0, 45, -0.35, 1.5),  # outer nuclear layer
    (2.0, 66, 0.0, 0.0),  # external limiting membrane
    (5.0, 52, -0.1, 0.0),  # inner segments
    (4.5, 158, 0.0, 0.0),  # ellipsoid zone
    (5.5, 84, -0.4, 0.0),  # outer segments
)
_SOFT_LAYERS = 5  # The upper layers blend into each other; below them, edges are sharp.
_FLUID_GREY, _PIGMENT_GREY, _BRUCH_GREY, _CHOROID_GREY = 14, 192, 105, 75
_PIGMENT_PX, _BRUCH_PX = 7.0, 1.5
# Quantiles of the normal distribution, which turn random bytes into noise quickly.
_NOISE = np.array([NormalDist().inv_cdf((k + 0.5) / 256) for k in range(256)], np.float32)


class _Spot(NamedTuple):
    """A cyst or an exudate: an ellipse between inner nuclear layer and external membrane."""

    x_mm: float
    depth: float  # 0 at the upper, 1 at the lower end of the room between the two layers
    half_mm: float  # half axis across
    half_px: float  # half axis down
    grey: float


class _Lesions(NamedTuple):
    """Disease over the columns of a scan, float64 [width], in pixels unless noted otherwise."""

    elevation: Floats  # of the pigment epithelium above Bruch's membrane
    elevation_grey: float
    fluid: Floats  # between retina and pigment epithelium
    swelling: Floats  # of the layers that swell, as a share of their thickness
    spots: list[_Spot]


def draw_bscan(label: str, patient: int, index: int, seed: int) -> NDArray[np.uint8]:
    """Draws one OCT-like B-scan, which depends only on the arguments.

    The scans of a patient share anatomy and severity. Numbers are not negative.

    Returns:
        uint8 [height, width], grey; mostly 496 x 512, else 496 x {384, 768, 1024, 1536} or
        512 x 512. A pixel is 3.87 um deep.
    """
    eye = np.random.default_rng((1, seed, patient))
    rng = np.random.default_rng((2, seed, patient, LABEL_NAMES.index(label), index))
    width, height, field_mm = _FORMATS[rng.choice(len(_FORMATS), p=_FORMAT_SHARES[label])]
    x_mm = np.linspace(-field_mm / 2, field_mm / 2, width) + rng.uniform(-0.6, 0.6)

    severity = min(1.0, (0.35 + 0.65 * eye.random()) * rng.uniform(0.7, 1.15))
    lesions = _draw_lesions(rng, label, x_mm, severity, eye.uniform(-1.3, 1.3))
    layers = _layer_thicknesses(eye, rng, x_mm, lesions)
    bruch = _back_wall(eye, rng, x_mm, height)
    bounds = np.vstack([bruch - np.cumsum(layers[::-1], axis=0)[::-1], bruch])
    # Vessels in the retina throw shadows on all that is below them; the fovea has none.
    light = np.ones(width)
    for place in rng.uniform(x_mm[0], x_mm[-1], rng.integers(1, 8)):
        if abs(place) > 0.5:
            light *= 1 - rng.uniform(0.1, 0.5) * _bell(x_mm, place, rng.uniform(0.03, 0.09))

    image = _paint_layers(bounds, lesions, light, eye.uniform(0.8, 1.1), height)
    _paint_choroid(image, eye, rng, bruch, light)
    for spot in lesions.spots:
        _paint_spot(image, spot, x_mm, bounds[2], bounds[5])
    vignette = 1 - rng.uniform(0.05, 0.35) * ((x_mm - x_mm.mean()) / (field_mm / 2)) ** 2
    image *= (eye.uniform(0.75, 1.05) * rng.uniform(0.9, 1.1) * vignette).astype(np.float32)
    pixels = _speckled(rng, image, eye.uniform(0.12, 0.26), eye.uniform(8, 20))
    if eye.random() < 0.45:
        return _levelled(rng, pixels, float(bruch[-1] - bruch[0]) / width)
    return pixels


def _waves(rng: Generator, x_mm: Floats, shortest_mm: float, longest_mm: float) -> Floats:
    """Returns a smooth random curve over `x_mm`, about -1 to 1: a sum of five sines."""
    lengths = shortest_mm * (longest_mm / shortest_mm) ** rng.random(5)
    phases = rng.uniform(0, 2 * math.pi, 5)
    return np.sin(x_mm[:, None] * (2 * math.pi / lengths) + phases).sum(axis=1) / 3


def _bell(x_mm: Floats, centre: float, half_width: float) -> Floats:
    return np.exp(-(((x_mm - centre) / half_width) ** 2))


def _dome(x_mm: Floats, centre: float, half_width: float) -> Floats:
    """Returns a half ellipse: 1 at the centre, 0 beyond the half width."""
    return np.sqrt(np.maximum(0.0, 1 - ((x_mm - centre) / half_width) ** 2))


def _draw_lesions(
    rng: Generator, label: str, x_mm: Floats, severity: float, centre: float
) -> _Lesions:
    """Draws what a class shows; a healthy eye has only a small unevenness."""
    centre += rng.uniform(-0.4, 0.4)
    elevation = np.maximum(0.0, rng.uniform(0.3, 1.6) * _waves(rng, x_mm, 0.25, 1.5))
    elevation_grey = rng.uniform(70, 120)
    fluid, swelling = np.zeros_like(x_mm), 0.02 * _waves(rng, x_mm, 1.0, 3.0)
    spots = []
    # Neovascularisation often grows in eyes with drusen: bumps of the pigment epithelium.
    if label == "DRUSEN" or (label == "CNV" and rng.random() < 0.3):
        for _ in range(2 + int(severity * rng.uniform(3, 12))):
            height = 3 + 24 * severity * rng.random()
            bump = _bell(x_mm, centre + rng.uniform(-2, 2), rng.uniform(0.08, 0.25))
            elevation = np.maximum(elevation, height * bump)
    if label == "CNV":  # an irregular detachment of the pigment epithelium, and fluid above it
        half_width = rng.uniform(0.3, 0.6) + severity * rng.random()
        irregular = np.maximum(0.15, 1 + 0.45 * _waves(rng, x_mm, 0.4, 1.6))
        membrane = irregular * _dome(x_mm, centre, half_width)
        elevation = np.maximum(elevation, (4 + severity * rng.uniform(8, 44)) * membrane)
        pool = _dome(x_mm, centre + rng.uniform(-0.8, 0.8), half_width * rng.uniform(0.8, 1.5))
        fluid = (rng.random() < 0.8) * severity * rng.uniform(8, 36) * pool**1.5
        swelling += 0.25 * severity * _bell(x_mm, centre, half_width + 0.4)
    if label == "DME":  # a thickened retina with dark cysts and bright exudates
        swelling += severity * rng.uniform(0.25, 0.75) * _bell(x_mm, centre, rng.uniform(0.7, 1.8))
        for _ in range(2 + int(severity * rng.uniform(3, 9))):
            place, half_mm = centre + rng.uniform(-0.9, 0.9), 0.03 + 0.2 * severity * rng.random()
            half_px = 3 + 24 * severity * rng.random()
            spots.append(_Spot(place, rng.random(), half_mm, half_px, rng.uniform(8, 24)))
        for _ in range(int(severity * rng.uniform(0, 9))):
            place, half_mm = centre + rng.uniform(-1.8, 1.8), rng.uniform(0.02, 0.06)
            depth, half_px, grey = rng.random(), rng.uniform(1.5, 4), rng.uniform(150, 215)
            spots.append(_Spot(place, depth, half_mm, half_px, grey))
    return _Lesions(elevation, elevation_grey, fluid, swelling, spots)


def _layer_thicknesses(eye: Generator, rng: Generator, x_mm: Floats, lesions: _Lesions) -> Floats:
    """Returns the thickness in pixels, [layer, width], of the layers that are painted, in order."""
    slice_mm = rng.uniform(-1, 1) ** 3  # Most slices of the archive pass near the fovea.
    radius = np.hypot(x_mm, slice_mm)
    pit = eye.uniform(0.75, 1.0) * np.exp(-((radius / eye.uniform(0.38, 0.6)) ** 2))
    scale = eye.uniform(0.9, 1.12) * (1 + 0.2 * _bell(radius, 1.1, 0.6))
    thicknesses = [
        pixels
        * (scale * (1 + 0.06 * _waves(rng, x_mm, 0.5, 4.0)) if pixels > 6 else 1)
        * (1 - missing * pit)
        * (1 + swells * lesions.swelling)
        for pixels, _, missing, swells in _LAYERS
    ]
    # Nerve fibres converge towards the optic nerve, which is at one side of the image.
    thicknesses[0] *= np.clip(1 + 0.35 * x_mm, 0.5, 2.2)
    # A bump from below compresses the outer nuclear layer; the layers above it rise smoothly.
    rise = lesions.elevation + lesions.fluid
    half = max(1, round(0.2 * x_mm.size / float(x_mm[-1] - x_mm[0])))
    window = np.bartlett(2 * half + 1)
    smooth = np.convolve(np.pad(rise, half, mode="edge"), window / window.sum(), mode="valid")
    pressed = thicknesses[4] + 0.65 * smooth - rise
    thicknesses[4] = np.maximum(0.3 * thicknesses[4], pressed)
    flat = np.ones_like(x_mm)
    return np.stack(
        [*thicknesses, lesions.fluid, _PIGMENT_PX * flat, lesions.elevation, _BRUCH_PX * flat]
    )


def _back_wall(eye: Generator, rng: Generator, x_mm: Floats, height: int) -> Floats:
    """Returns the depth of Bruch's membrane, float64 [width], in pixels from the top."""
    tilt, curvature = eye.uniform(-9, 9) + rng.uniform(-4, 4), 0.2 + 6.5 * eye.random() ** 2.2
    wall = tilt * x_mm - curvature * x_mm**2 + 2.0 * _waves(rng, x_mm, 2.5, 8.0)
    # Keeps about 95 px for the retina above, and the deepest point inside the image.
    wall -= wall.mean()
    return wall + np.clip(rng.uniform(0.36, 0.62) * height, 100 - wall.min(), 0.86 * height)


def _paint_layers(
    bounds: Floats, lesions: _Lesions, light: Floats, gain: float, height: int
) -> Greys:
    """Paints the layers; the vitreous above and the choroid below stay black.

    `bounds`, [layer + 1, width], are the upper bounds of the layers and the lower one of the last.
    `light`, [width], is the share of light in each column, `gain` that in the upper layers.
    """
    gains = [gain] * _SOFT_LAYERS + [1.0] * (len(_LAYERS) - _SOFT_LAYERS)
    greys = [grey * gain for (_, grey, _, _), gain in zip(_LAYERS, gains, strict=True)]
    greys += [_FLUID_GREY, _PIGMENT_GREY, lesions.elevation_grey, _BRUCH_GREY, 0]
    # Each bound holds the difference of two greys, of which a sum down the column then makes the
    # picture. So a layer without thickness leaves no trace.
    steps = np.zeros((light.size, height + 4), np.float32)
    columns = np.arange(light.size)
    for row, (bound, step) in enumerate(zip(bounds, np.diff(greys, prepend=0), strict=True)):
        edge = 4 if 0 < row <= _SOFT_LAYERS else 1  # rows over which two layers blend
        place = np.clip(bound - edge / 2 + 0.5, 0, height - 1)
        first = place.astype(np.intp)
        share = place - first
        for offset in range(edge):
            steps[columns, first + offset] += step / edge * (1 - share) * light
            steps[columns, first + offset + 1] += step / edge * share * light
    return np.ascontiguousarray(np.cumsum(steps, axis=1)[:, :height].T)


def _paint_choroid(
    image: Greys, eye: Generator, rng: Generator, bruch: Floats, light: Floats
) -> None:
    """Paints the tissue below Bruch's membrane, mottled by its vessels, in place."""
    top = max(0, int(bruch.min()))
    height, width = image[top:].shape
    coarse = rng.standard_normal((height // 12 + 1, width // 24), np.float32)
    mottle = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    depth = np.arange(top, top + height, dtype=np.float32)[:, None] - bruch.astype(np.float32)
    fade = np.exp(depth * np.float32(-1 / eye.uniform(35, 85)))
    fade *= np.clip(1 + np.float32(0.2) * np.asarray(mottle), 0.4, 1.6)
    fade *= (_CHOROID_GREY * light).astype(np.float32)
    np.add(image[top:], fade, out=image[top:], where=depth > 0)


def _paint_spot(image: Greys, spot: _Spot, x_mm: Floats, top: Floats, bottom: Floats) -> None:
    """Paints an ellipse with a soft edge, in place, where it fits between two bounds."""
    column = int(np.searchsorted(x_mm, spot.x_mm))
    if not 0 < column < x_mm.size:
        return
    room = float(bottom[column] - top[column])
    half_height = max(1.5, min(spot.half_px, 0.46 * room))
    half_width = max(1.5, min(spot.half_mm / float(x_mm[1] - x_mm[0]), 3 * half_height))
    middle = float(top[column]) + half_height + spot.depth * max(0.0, room - 2 * half_height)
    upper, left = max(0, int(middle - half_height) - 3), max(0, int(column - half_width) - 3)
    window = image[upper : int(middle + half_height) + 4, left : int(column + half_width) + 4]
    rows, columns = np.indices(window.shape)
    down, across = (rows + upper - middle) / half_height, (columns + left - column) / half_width
    cover = np.clip((1 - np.hypot(down, across)) * min(half_width, half_height) / 1.5 + 0.5, 0, 1)
    window += ((spot.grey - window) * cover).astype(np.float32)


def _speckled(rng: Generator, image: Greys, speckle: float, floor: float) -> NDArray[np.uint8]:
    """Adds a scanner's noise: relative in tissue, `speckle`; `floor` is the vitreous' grey."""
    height, width = image.shape
    size = (height + 1) * (width + 1)
    fine = _NOISE[np.frombuffer(rng.bytes(size), np.uint8)].reshape(height + 1, width + 1)
    # Neighbours share noise: in the real scans' vitreous it correlates by about 0.35.
    grain = fine[:-1, :-1] + np.float32(0.4) * fine[:-1, 1:] + np.float32(0.3) * fine[1:, :-1]
    noisy = image + np.float32(floor)
    noisy *= 1 + np.float32(0.88 * speckle) * grain
    noisy += np.float32(0.4 * floor) * grain
    return np.clip(noisy, 0, 250, out=noisy).astype(np.uint8)


def _levelled(rng: Generator, pixels: NDArray[np.uint8], slope: float) -> NDArray[np.uint8]:
    """Rotates a scan by about the retina's slope and shifts it, with white corners."""
    angle = min(0.08, max(-0.08, math.atan(slope) + rng.uniform(-0.03, 0.03)))
    shift = round(rng.uniform(-1, 1) ** 3 * 0.16 * pixels.shape[0])
    # Nearest neighbour, as in the real scans; interpolation would smooth the speckle.
    turned = Image.fromarray(pixels).rotate(
        math.degrees(angle), Image.Resampling.NEAREST, translate=(0, shift), fillcolor=255
    )
    return np.asarray(turned)


def encode_jpeg(pixels: NDArray[np.uint8]) -> bytes:
    """Encodes a scan, uint8 [height, width], as the Kermany archive does: a JPEG file of mode L.

    The quality is 75, but 90 for 512 x 512: real scans of that size are less compressed too.
    """
    quality = 90 if pixels.shape[0] == 512 else 75
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG", quality=quality)
    return buffer.getvalue()


def write_tree(
    directory: Path,
    num_examples: int,
    seed: int,
    progress: Callable[[int], object] = lambda written: None,
) -> None:
    """Writes a tree of synthetic scans.

    The files are `directory/OCT2017 /{train,val,test}/CLASS/CLASS-PATIENT-INDEX.jpeg`. The same
    arguments give the same bytes and modification times on any number of cores. The tree is drawn
    in another folder and renamed when it is complete. A complete tree is kept; one with other
    settings or missing files is drawn again. `progress` is called with the number of images that
    were written since its last call.

    Raises:
        errors.UserError: if another process is drawing into the directory, or it exists and this
            function did not write it.
        errors.BuildError: if a worker process died.
    """
    tasks = _plan_tree(num_examples, seed)
    settings = {
        "generator_version": GENERATOR_VERSION,
        "num_examples": num_examples,
        "numpy_version": np.__version__,
        "pillow_version": PIL.__version__,
        "seed": seed,
    }
    if read_json(directory / COMPLETE_MARKER) == settings:
        times = [path.stat().st_mtime for path in directory.glob(f"{ARCHIVE_FOLDER}/*/*/*")]
        if times == [FILE_MTIME] * num_examples:
            return
    lock = directory.with_name(f".{directory.name}.lock")
    with file_lock.held(lock, f"drawing into {directory}"):
        if directory.exists() and not (directory / COMPLETE_MARKER).exists():
            raise errors.UserError(
                f"{directory} exists and was not written by the synthetic source (no "
                f"{COMPLETE_MARKER} in it); choose another directory, or delete that folder if it "
                "is not needed"
            )
        drawing = directory.with_name(f".{directory.name}.drawing")
        shutil.rmtree(drawing, ignore_errors=True)
        _draw(tasks, drawing, progress)
        (drawing / COMPLETE_MARKER).write_text(json.dumps(settings, indent=2) + "\n")
        if directory.exists():
            shutil.rmtree(directory)
        drawing.rename(directory)


def _draw(tasks: Sequence[_Task], directory: Path, progress: Callable[[int], object]) -> None:
    for folder in {task.path(directory).parent for task in tasks}:
        folder.mkdir(parents=True)
    calls = [(tasks[i : i + _CHUNK_SIZE], directory) for i in range(0, len(tasks), _CHUNK_SIZE)]
    num_workers = len(os.sched_getaffinity(0)) if len(tasks) >= _SMALLEST_PARALLEL_RUN else 1
    counts = (
        workers.results(_write_images, calls, num_workers)
        if num_workers > 1
        else itertools.starmap(_write_images, calls)
    )
    for written in counts:
        progress(written)


class _Task(NamedTuple):
    """One file to draw."""

    split: str
    label: str
    patient: int
    index: int
    seed: int

    def path(self, directory: Path) -> Path:
        name = f"{self.label}-{self.patient}-{self.index}.jpeg"
        return directory / ARCHIVE_FOLDER / self.split / self.label / name


def _write_images(tasks: Sequence[_Task], directory: Path) -> int:
    """Draws some files; returns their number."""
    for task in tasks:
        path = task.path(directory)
        path.write_bytes(encode_jpeg(draw_bscan(task.label, task.patient, task.index, task.seed)))
        os.utime(path, (FILE_MTIME, FILE_MTIME))
    return len(tasks)


def split_sizes(num_examples: int) -> dict[tuple[str, str], int]:
    """Distributes a number of images over (split, label) as in the Kermany archive.

    val and test get about a tenth each, with equal classes; train has the real proportions of
    classes. Each class of each split gets at least one image, if there are at least 12.
    """
    num_classes = len(LABEL_NAMES)
    held_out = max(1, round(num_examples * _HELD_OUT_SHARE / num_classes))
    spare = num_examples - (2 * held_out + 1) * num_classes
    ends = np.round(spare * np.cumsum((0, *_TRAIN_SIZES)) / sum(_TRAIN_SIZES)).astype(int)
    sizes = {
        ("train", name): 1 + int(n) for name, n in zip(LABEL_NAMES, np.diff(ends), strict=True)
    }
    return sizes | {(split, label): held_out for split in SPLITS[1:] for label in LABEL_NAMES}


def _plan_tree(num_examples: int, seed: int) -> list[_Task]:
    """Returns all files to draw, in a fixed order, with their patients, classes and splits."""
    sizes = split_sizes(num_examples)
    rng = np.random.default_rng((3, seed, num_examples))
    patients = iter(rng.choice(9_999_999, num_examples, replace=False).tolist())
    tasks: list[_Task] = []
    for split, label in list(sizes):
        while sizes[split, label]:
            patient, shown = next(patients), [label]
            later = LABEL_NAMES[LABEL_NAMES.index(label) + 1 :]
            if later and rng.random() < _SECOND_CLASS_PROBABILITY:
                shown.append(later[rng.integers(len(later))])
            # With gaps, because the real archive holds only some scans of each volume.
            indices = iter(rng.integers(1, 26, 24).cumsum().tolist())
            for each in shown:
                # From 1 to 12 images, mostly few; more with disease than without.
                wanted = 1 + int(11 * rng.random() ** (3.0 if each == "NORMAL" else 1.6))
                for _ in range(min(sizes[split, each], wanted)):
                    tasks.append(_Task(split, each, patient, next(indices), seed))
                    sizes[split, each] -= 1
    return tasks
