"""Draws OCT-like retinal B-scans, in the folder structure of the Kermany archive.

They replace the Kermany data in tests, benchmarks and first runs. The scans are drawn, not learnt,
and contain no patient's data. Every disease is drawn severe enough to be visible. **A model trained
on these scans says nothing about real eyes.**

A trap of the archive is drawn too: class and image size are mildly correlated (512x512 is more
often DME and less compressed, a width of 1536 is more often CNV or NORMAL). Patients have several
scans, a few of them in two classes, none in two splits. The classes of train are as unbalanced as
those of the archive.
"""

from __future__ import annotations

import io
import math
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from pipelines import errors
from tfrecord_io.stores import file_lock
from tfrecord_io.stores.ahead import map_ahead
from tfrecord_io.terminal.printing import bar

Floats = NDArray[np.float64]

LABEL_NAMES = ("CNV", "DME", "DRUSEN", "NORMAL")
SPLITS = ("train", "val", "test")
ARCHIVE_FOLDER = "OCT2017 "  # with a trailing space, as in the Kermany archive

#: Modification time of every file: 2018-01-01T00:00:00Z.
FILE_MTIME = 1_514_764_800

# Images of each class in the real train folder (Kermany et al. 2018, Kaggle's edition).
_TRAIN_SIZES = (37_205, 11_348, 8_616, 26_315)
_HELD_OUT_SHARE = 0.1  # of all images, for each of val and test
_SECOND_CLASS_PROBABILITY = 0.06

# Width and height in pixels, and how often each class of `LABEL_NAMES` has this size.
_SIZES = {
    (512, 496): (0.58, 0.56, 0.64, 0.62),
    (768, 496): (0.24, 0.18, 0.23, 0.24),
    (1024, 496): (0.03, 0.03, 0.03, 0.02),
    (1536, 496): (0.10, 0.03, 0.05, 0.08),
    (512, 512): (0.03, 0.18, 0.03, 0.03),
    (384, 496): (0.02, 0.02, 0.02, 0.01),
}

# The healthy retina from its surface down: thickness in pixels of 3.87 um (typical for adults),
# grey level, and the share that is missing at the centre of the fovea.
_LAYERS = (
    (8, 150, 0.97),  # nerve fibres
    (20, 92, 0.95),  # ganglion cells
    (10, 62, 0.93),  # inner nuclear layer
    (7, 84, 0.8),  # outer plexiform layer
    (22, 45, -0.35),  # outer nuclear layer
    (5, 52, 0),  # inner segments
    (5, 158, 0),  # ellipsoid zone
    (5, 84, 0),  # outer segments
)
_PLEXIFORM, _OUTER_NUCLEAR = 3, 4
# Grey levels below these layers: fluid, pigment epithelium, deposits under it, and choroid.
_GREYS_BELOW = (14, 192, 95, 75)
_PIGMENT_PX = 7.0


#: Cysts: place in mm, and half axes across and down in pixels.
_Cysts = list[tuple[float, float, float]]


def draw_bscan(label: str, patient: int, index: int, seed: int) -> NDArray[np.uint8]:
    """Draws one OCT-like B-scan, which depends only on the arguments.

    The scans of a patient share anatomy and severity. Numbers are not negative.

    Returns:
        uint8 [height, width], grey; mostly 496 x 512, else 496 x {384, 768, 1024, 1536} or
        512 x 512. A pixel is 3.87 um deep; the scan is 6 mm wide.
    """
    number = LABEL_NAMES.index(label)
    eye = np.random.default_rng((1, seed, patient))
    rng = np.random.default_rng((2, seed, patient, number, index))
    shares = [of_classes[number] for of_classes in _SIZES.values()]
    width, height = list(_SIZES)[rng.choice(len(_SIZES), p=shares)]
    x_mm = np.linspace(-3, 3, width)
    bounds, cysts = _draw_bounds(eye, rng, label, x_mm, height)
    canvas = Image.new("L", (width, height))
    pen = ImageDraw.Draw(canvas)
    greys = [grey for _, grey, _ in _LAYERS] + list(_GREYS_BELOW)
    for bound, grey in zip(bounds, greys, strict=True):
        pen.polygon([(0, height), *enumerate(bound.tolist()), (width, height)], fill=grey)
    for place, half_width, half_height in cysts:
        column = int(np.searchsorted(x_mm, place))
        row = bounds[_PLEXIFORM, column]
        box = column - half_width, row - half_height, column + half_width, row + half_height
        pen.ellipse(box, fill=14)

    image = np.array(canvas, np.float32)
    # Vessels in the retina throw shadows on all that is below them.
    light = np.full(width, eye.uniform(0.75, 1.05) * rng.uniform(0.9, 1.1))
    for place in rng.uniform(-3, 3, rng.integers(1, 8)):
        light *= 1 - rng.uniform(0.1, 0.5) * _bell(x_mm, place, rng.uniform(0.03, 0.09))
    image *= light.astype(np.float32)
    # Little light reaches the depth of the choroid.
    top = int(bounds[-1].min())
    depth = np.arange(top, height)[:, None] - bounds[-1]
    image[top:] *= np.exp(np.minimum(0, -depth / eye.uniform(35, 85)))
    # A scanner's noise is relative in tissue; neighbours share it, in the real scans by about 0.35.
    noise = rng.integers(0, 256, (height + 1, width), np.uint8).astype(np.float32)
    grain = (noise[1:] + 0.4 * noise[:-1] - 178.5) / 80
    speckle, floor = eye.uniform(0.12, 0.26), eye.uniform(8, 20)  # the grey of the vitreous
    image = (image + floor) * (1 + speckle * grain) + 0.4 * floor * grain
    return np.clip(image, 0, 250).astype(np.uint8)


def _waves(rng: Generator, x_mm: Floats, shortest_mm: float, longest_mm: float) -> Floats:
    """Returns a smooth random curve over `x_mm`, about -1 to 1: a sum of five sines."""
    lengths = rng.uniform(shortest_mm, longest_mm, 5)
    phases = rng.uniform(0, 2 * math.pi, 5)
    return np.sin(x_mm[:, None] * (2 * math.pi / lengths) + phases).sum(axis=1) / 3


def _bell(x_mm: Floats, centre: float, half_width: float) -> Floats:
    return np.exp(-(((x_mm - centre) / half_width) ** 2))


def _draw_lesions(
    eye: Generator, rng: Generator, label: str, x_mm: Floats
) -> tuple[Floats, Floats, Floats, _Cysts]:
    """Draws what a class shows; a healthy eye has only a small unevenness.

    Returns:
        over the columns of a scan, the elevation of the pigment epithelium in pixels, the fluid
        above it in pixels, and the swelling of the retina as a share of its thickness; and cysts.
    """
    severity = min(1.0, (0.35 + 0.65 * eye.random()) * rng.uniform(0.7, 1.15))
    centre = eye.uniform(-1.3, 1.3) + rng.uniform(-0.4, 0.4)
    elevation = np.maximum(0, rng.uniform(0.3, 1.6) * _waves(rng, x_mm, 0.25, 1.5))
    fluid, swelling = np.zeros_like(x_mm), 0.02 * _waves(rng, x_mm, 1.0, 3.0)
    cysts: _Cysts = []
    # Neovascularisation often grows in eyes with drusen: bumps of the pigment epithelium.
    if label == "DRUSEN" or (label == "CNV" and rng.random() < 0.3):
        for _ in range(2 + int(severity * rng.uniform(3, 12))):
            bump = _bell(x_mm, centre + rng.uniform(-2, 2), rng.uniform(0.08, 0.25))
            elevation = np.maximum(elevation, (3 + 24 * severity * rng.random()) * bump)
    if label == "CNV":  # an irregular detachment of the pigment epithelium, and fluid above it
        half_width = rng.uniform(0.3, 0.5) + 0.8 * severity * rng.random()
        membrane = _bell(x_mm, centre, half_width) * (1 + 0.45 * _waves(rng, x_mm, 0.4, 1.6))
        elevation = np.maximum(elevation, (4 + severity * rng.uniform(12, 46)) * membrane)
        pool = _bell(x_mm, centre + rng.uniform(-0.8, 0.8), half_width * rng.uniform(0.7, 1.2))
        fluid = (rng.random() < 0.8) * severity * rng.uniform(8, 36) * pool
    if label == "DME":  # a thickened retina with dark cysts
        swelling += severity * rng.uniform(0.2, 0.6) * _bell(x_mm, centre, rng.uniform(0.7, 1.8))
        for _ in range(2 + int(severity * rng.uniform(3, 9))):
            half_width, half_height = (2, 3) + severity * rng.uniform(0, (18, 20))
            cysts.append((centre + rng.uniform(-0.9, 0.9), half_width, half_height))
    return elevation, fluid, swelling, cysts


def _draw_bounds(
    eye: Generator, rng: Generator, label: str, x_mm: Floats, height: int
) -> tuple[Floats, _Cysts]:
    """Returns the upper bound of each layer from the top, [layer, width] in pixels, and cysts."""
    elevation, fluid, swelling, cysts = _draw_lesions(eye, rng, label, x_mm)
    # Most slices of the archive pass near the fovea.
    radius = np.hypot(x_mm + rng.uniform(-0.6, 0.6), rng.uniform(-1, 1) ** 3)
    pit = eye.uniform(0.75, 1.0) * _bell(radius, 0, eye.uniform(0.38, 0.6))
    scale = eye.uniform(0.9, 1.12) * (1 + 0.2 * _bell(radius, 1.1, 0.6)) * (1 + swelling)
    layers = [
        scale * pixels * (1 - missing * pit) * (1 + 0.06 * _waves(rng, x_mm, 0.5, 4.0))
        for pixels, _, missing in _LAYERS
    ]
    # What rises below it compresses the outer nuclear layer.
    outer = layers[_OUTER_NUCLEAR]
    outer -= np.minimum(0.7 * outer, 0.35 * (elevation + fluid))
    layers += [fluid, np.full_like(x_mm, _PIGMENT_PX), elevation]
    tilt, curvature = eye.uniform(-9, 9) + rng.uniform(-4, 4), 0.2 + 6.5 * eye.random() ** 2.2
    choroid = tilt * x_mm - curvature * x_mm**2 + 2.0 * _waves(rng, x_mm, 2.5, 8.0)
    # Keeps about 95 px for the retina above, and the deepest point inside the image.
    choroid -= choroid.mean()
    choroid += np.clip(rng.uniform(0.36, 0.62) * height, 100 - choroid.min(), 0.86 * height)
    return np.vstack([choroid - np.cumsum(layers[::-1], axis=0)[::-1], choroid]), cysts


def encode_jpeg(pixels: NDArray[np.uint8]) -> bytes:
    """Encodes a scan, uint8 [height, width], as the Kermany archive does: a JPEG file of mode L.

    The quality is 75, but 90 for 512 x 512: real scans of that size are less compressed too.
    """
    quality = 90 if pixels.shape[0] == 512 else 75
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG", quality=quality)
    return buffer.getvalue()


def write_tree(directory: Path, num_examples: int, seed: int) -> None:
    """Writes a tree of synthetic scans unless it is there, with a progress bar.

    The files are `directory/OCT2017 /{train,val,test}/CLASS/CLASS-PATIENT-INDEX.jpeg`. The same
    arguments give the same bytes on any number of cores, and the same times of change. They are
    written into another folder, which is renamed when it is complete.

    Raises:
        errors.UserError: if another process is writing into the folder.
        errors.BuildError: if a file cannot be written.
    """
    if directory.exists():
        return
    tasks = _plan_tree(num_examples, seed)
    writing = directory.with_name(f".{directory.name}.writing")

    def write(task: _Task) -> None:
        path = writing / task.name
        path.write_bytes(encode_jpeg(draw_bscan(task.label, task.patient, task.index, seed)))
        os.utime(path, (FILE_MTIME, FILE_MTIME))

    lock = directory.with_name(f".{directory.name}.lock")
    with (
        errors.clear_write_errors(f"{directory} (--download_dir chooses another folder)"),
        file_lock.held(lock, f"writing the images of {directory}"),
    ):
        shutil.rmtree(writing, ignore_errors=True)
        for folder in {(writing / task.name).parent for task in tasks}:
            folder.mkdir(parents=True)
        # NumPy and Pillow let other threads run while they work.
        num_threads = len(os.sched_getaffinity(0))
        written = map_ahead(write, tasks, 2 * num_threads, num_threads=num_threads)
        list(bar(iterable=written, desc="drawing", total=num_examples, unit=" images", delay=1.0))
        writing.rename(directory)


class _Task(NamedTuple):
    """One file to draw."""

    split: str
    label: str
    patient: int
    index: int

    @property
    def name(self) -> str:
        """Path of the file in the tree."""
        file = f"{self.label}-{self.patient}-{self.index}.jpeg"
        return f"{ARCHIVE_FOLDER}/{self.split}/{self.label}/{file}"


def _plan_tree(num_examples: int, seed: int) -> list[_Task]:
    """Returns all files to draw, in a fixed order, with their patients, classes and splits.

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
    sizes |= {(split, label): held_out for split in SPLITS[1:] for label in LABEL_NAMES}
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
            for name in shown:
                # From 1 to 12 images, mostly few; more with disease than without.
                wanted = 1 + int(11 * rng.random() ** (3.0 if name == "NORMAL" else 1.6))
                for _ in range(min(sizes[split, name], wanted)):
                    tasks.append(_Task(split, name, patient, next(indices)))
                    sizes[split, name] -= 1
    return tasks
