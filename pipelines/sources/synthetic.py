"""Draws OCT-like retinal B-scans, in the folder structure of the Kermany archive.

They replace the Kermany data in tests, benchmarks and first runs. The scans are drawn, not learnt,
and contain no patient's data. Every disease is drawn severe enough to be visible. **A model trained
on these scans says nothing about real eyes.**

A patient has several scans of one class, in one split. The classes of train are as unbalanced as
those of the archive; those of val and test are equally large.
"""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from pipelines import errors
from tfrecord_io.stores.ahead import map_ahead
from tfrecord_io.terminal.printing import bar

# Images of each class in the train folder of the archive (Kermany et al. 2018, Kaggle's edition).
_TRAIN_SIZES = {"CNV": 37_205, "DME": 11_348, "DRUSEN": 8_616, "NORMAL": 26_315}
LABEL_NAMES = tuple(_TRAIN_SIZES)
SPLITS = ("train", "val", "test")
ARCHIVE_FOLDER = "OCT2017 "  # with a trailing space, as in the archive

#: Modification time of every file: 2018-01-01T00:00:00Z.
FILE_MTIME = 1_514_764_800

# The most frequent size of the archive; a scan is 6 mm wide.
_HEIGHT, _WIDTH = 496, 512

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
_OUTER_NUCLEAR = 4
_FLUID, _PIGMENT, _DEPOSIT, _CHOROID = 14, 192, 95, 75  # grey levels below these layers
_PIGMENT_PX = 7


def draw_bscan(label: str, patient: int, index: int, seed: int) -> NDArray[np.uint8]:
    """Draws one OCT-like B-scan, which depends only on the arguments.

    The scans of a patient share anatomy and severity. Numbers are not negative.

    Returns:
        uint8 [496, 512], grey. A pixel is 3.87 um deep; the scan is 6 mm wide.
    """
    eye = np.random.default_rng((1, seed, patient))
    rng = np.random.default_rng((2, seed, patient, LABEL_NAMES.index(label), index))
    x_mm = np.linspace(-3, 3, _WIDTH)

    def bell(centre: float, half_width: float) -> NDArray[np.float64]:
        return np.exp(-(((x_mm - centre) / half_width) ** 2))

    def waves(shortest_mm: float, longest_mm: float) -> NDArray[np.float64]:
        """Returns a smooth random curve, about -1 to 1: a sum of five sines."""
        lengths, phases = rng.uniform(shortest_mm, longest_mm, 5), rng.uniform(0, 2 * math.pi, 5)
        return np.sin(x_mm[:, None] * (2 * math.pi / lengths) + phases).sum(axis=1) / 3

    # What the class shows, over the columns of the scan: how much the pigment epithelium is raised
    # and how much fluid is above it, in pixels; and the swelling as a share of the thickness.
    severity, centre = eye.uniform(0.4, 1), eye.uniform(-1.2, 1.2) + rng.uniform(-0.3, 0.3)
    raised, fluid, swelling = np.maximum(0, waves(0.25, 1.5)), 0 * x_mm, 0.02 * waves(1, 3)
    cysts = list[tuple[float, float, float]]()  # place in mm; half axes across and down in pixels
    if label == "DRUSEN":  # bumps of the pigment epithelium
        for _ in range(rng.integers(4, 10)):
            bump = bell(rng.uniform(-2.5, 2.5), rng.uniform(0.12, 0.26))
            raised = np.maximum(raised, severity * rng.uniform(12, 28) * bump)
    if label == "CNV":  # an irregular detachment of the pigment epithelium, and fluid above it
        width = rng.uniform(0.5, 1.1)
        membrane = bell(centre, width) * (1 + 0.4 * waves(0.4, 1.6))
        raised = np.maximum(raised, severity * rng.uniform(24, 50) * membrane)
        fluid = severity * rng.uniform(14, 36) * bell(centre + rng.uniform(-0.8, 0.8), width)
    if label == "DME":  # a thickened retina with dark cysts
        swelling += severity * rng.uniform(0.35, 0.65) * bell(centre, rng.uniform(0.8, 1.8))
        for _ in range(rng.integers(4, 10)):
            half_width, half_height = severity * rng.uniform((7, 7), (20, 20))
            cysts.append((centre + rng.uniform(-0.9, 0.9), half_width, half_height))

    # The upper bound of each layer in pixels from the top. Most slices pass near the fovea.
    radius = np.hypot(x_mm + rng.uniform(-0.6, 0.6), rng.uniform(-1, 1) ** 3)
    pit = eye.uniform(0.75, 1) * np.exp(-((radius / eye.uniform(0.38, 0.6)) ** 2)) * (1 - swelling)
    scale = eye.uniform(0.9, 1.12) * (1 + 0.2 * np.exp(-(((radius - 1.1) / 0.6) ** 2)))
    layers = [
        scale * (1 + swelling) * pixels * (1 - missing * pit) * (1 + 0.06 * waves(0.5, 4))
        for pixels, _, missing in _LAYERS
    ]
    # What rises below it compresses the outer nuclear layer.
    layers[_OUTER_NUCLEAR] -= np.minimum(0.7 * layers[_OUTER_NUCLEAR], 0.35 * (raised + fluid))
    layers += [fluid, np.full(_WIDTH, _PIGMENT_PX), raised]
    tilt, curvature = eye.uniform(-9, 9) + rng.uniform(-4, 4), 0.2 + 6.5 * eye.random() ** 2.2
    choroid = tilt * x_mm - curvature * x_mm**2 + 2 * waves(2.5, 8)
    # Keeps about 95 px for the retina above, and the deepest point inside the image.
    choroid -= choroid.mean()
    choroid += np.clip(rng.uniform(0.36, 0.62) * _HEIGHT, 100 - choroid.min(), 0.86 * _HEIGHT)
    bounds = np.vstack([choroid - np.cumsum(layers[::-1], axis=0)[::-1], choroid])

    canvas = Image.new("L", (_WIDTH, _HEIGHT))
    pen = ImageDraw.Draw(canvas)
    greys = [*(grey for _, grey, _ in _LAYERS), _FLUID, _PIGMENT, _DEPOSIT, _CHOROID]
    for bound, grey in zip(bounds, greys, strict=True):
        pen.polygon([(0, _HEIGHT), *enumerate(bound.tolist()), (_WIDTH, _HEIGHT)], fill=grey)
    for place, across, down in cysts:
        column = int(np.searchsorted(x_mm, place))
        row = bounds[_OUTER_NUCLEAR : _OUTER_NUCLEAR + 2, column].mean()
        pen.ellipse((column - across, row - down, column + across, row + down), fill=_FLUID)
    image = np.array(canvas, np.float32)
    # Little light reaches the depth of the choroid, and vessels throw shadows on all below them.
    depth = np.maximum(
        0, np.arange(_HEIGHT, dtype=np.float32)[:, None] - choroid.astype(np.float32)
    )
    light = eye.uniform(0.75, 1.05) * rng.uniform(0.9, 1.1)
    for _ in range(rng.integers(1, 8)):
        light = light * (
            1 - rng.uniform(0.1, 0.5) * bell(rng.uniform(-3, 3), rng.uniform(0.03, 0.09))
        )
    image *= light.astype(np.float32) * np.exp(-depth / eye.uniform(35, 85))
    # A scanner's noise is relative in tissue; neighbours share it, in the real scans by about 0.35.
    noise = rng.integers(0, 256, (_HEIGHT + 1, _WIDTH), np.uint8).astype(np.float32)
    grain = (noise[1:] + 0.4 * noise[:-1] - 178.5) / 80
    speckle, floor = eye.uniform(0.12, 0.26), eye.uniform(8, 20)  # the grey of the vitreous
    image = (image + floor) * (1 + speckle * grain) + 0.4 * floor * grain
    return np.clip(image, 0, 250).astype(np.uint8)


def write_tree(directory: Path, num_examples: int, seed: int) -> None:
    """Writes a tree of synthetic scans unless it is there, with a progress bar.

    The files are `directory/OCT2017 /{train,val,test}/CLASS/CLASS-PATIENT-INDEX.jpeg`. The same
    arguments give the same bytes on any number of cores, and the same times of change. They are
    written into another folder, which is renamed when it is complete.

    Raises:
        errors.BuildError: if a file cannot be written.
    """
    if directory.exists():
        return
    with errors.clear_write_errors(f"{directory} (--download_dir chooses another folder)"):
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".drawing-") as scratch:
            tree = Path(scratch, "tree")
            for split in SPLITS:
                for label in LABEL_NAMES:
                    (tree / ARCHIVE_FOLDER / split / label).mkdir(parents=True)

            def write(scan: tuple[str, str, int, int]) -> None:
                split, label, *numbers = scan
                path = tree / ARCHIVE_FOLDER / split / label / "-".join(map(str, scan[1:]))
                path = path.with_suffix(".jpeg")
                Image.fromarray(draw_bscan(label, *numbers, seed)).save(path)
                os.utime(path, (FILE_MTIME, FILE_MTIME))

            # NumPy and Pillow let other threads run while they work.
            cores = len(os.sched_getaffinity(0))
            written = map_ahead(write, _plan(num_examples, seed), 2 * cores, num_threads=cores)
            list(bar(iterable=written, desc="drawing", total=num_examples, unit=" images", delay=1))
            tree.rename(directory)


def _plan(num_examples: int, seed: int) -> list[tuple[str, str, int, int]]:
    """Returns the split, class, patient and index of all scans, of each class in each split one.

    val and test have about a tenth each, with equal classes.
    """
    rng = np.random.default_rng((3, seed, num_examples))
    held_out = max(1, round(num_examples / 40))
    shares = np.array([*_TRAIN_SIZES.values()]) / sum(_TRAIN_SIZES.values())
    of_train = 1 + rng.multinomial(num_examples - 8 * held_out - 4, shares)
    scans, patient = list[tuple[str, str, int, int]](), 0
    for split in SPLITS:
        for label, size in zip(LABEL_NAMES, of_train.tolist(), strict=True):
            left = size if split == "train" else held_out
            while left:  # a patient has from 1 to 12 scans, mostly few
                patient, num_scans = patient + 1, min(left, 1 + int(11 * rng.random() ** 2))
                scans += [(split, label, patient, index + 1) for index in range(num_scans)]
                left -= num_scans
    return scans
