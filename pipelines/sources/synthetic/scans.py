"""Draws OCT-like retinal B-scans that resemble those of the Kermany archive.

They replace the Kermany data in tests, benchmarks and first runs. The scans are drawn, not learnt,
and contain no patient's data. Every disease is drawn severe enough to be visible, because the
graders of the real scans saw it too. **A model trained on these scans says nothing about real
eyes.**

Three properties match the Kermany archive, so that they are tested early: patients have several
images, and a few patients are in two classes; the classes of train are unbalanced; and class and
image size are *mildly* correlated (512x512 is more often DME and less compressed, a width of 1536
is more often CNV or NORMAL). One property is better than in the Kermany archive: no patient is in
two splits.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray
from PIL import Image

Floats = NDArray[np.float64]

# Part of the completeness marker; raise it whenever the same arguments give different bytes.
GENERATOR_VERSION = 2
LABEL_NAMES = ("CNV", "DME", "DRUSEN", "NORMAL")

# The first word of each seed, so that different draws for a patient use different streams.
_PATIENT_STREAM, _SCAN_STREAM, TREE_STREAM = 1, 2, 3

# --------------------------------------------------------------------------------------------------
# Random numbers. NumPy keeps the raw bits of PCG64 and SeedSequence stable, but not the results of
# Generator's methods (NEP 19). So only raw bits and Generator.random, which is a shift and a
# product of them, are used here.
# --------------------------------------------------------------------------------------------------


def generator(*words: int) -> Generator:
    """Returns a generator seeded with these words, which gives the same stream on every machine."""
    return Generator(PCG64(SeedSequence(words)))


def _between(rng: Generator, low: float, high: float) -> float:
    return low + (high - low) * float(rng.random())


def whole(rng: Generator, low: int, high: int) -> int:
    """Returns a random integer from low to high, both included."""
    return low + int(rng.random() * (high - low + 1))


def chance(rng: Generator, probability: float) -> bool:
    """Returns True with the given probability."""
    return bool(rng.random() < probability)


def _weighted(rng: Generator, weights: Sequence[float]) -> int:
    """Returns a random index of `weights`, with probabilities proportional to the weights."""
    rest = float(rng.random()) * sum(weights)
    for position, weight in enumerate(weights):
        rest -= weight
        if rest < 0:
            return position
    return len(weights) - 1


def _noise_table() -> NDArray[np.float32]:
    """Returns 256 quantiles of a left-skewed noise with mean 0 and standard deviation 1.

    The intensity of speckle is exponential, and a scanner shows roughly its logarithm, which gives
    the black dots in dark areas. Averaging frames makes it more normal, so a mixture is used.
    """
    levels = [(k + 0.5) / 256 for k in range(256)]
    log_speckle = np.array([math.log(-math.log(1 - level)) for level in levels])
    normal = np.array([NormalDist().inv_cdf(level) for level in levels])
    mixed = 0.4 * log_speckle / log_speckle.std() + 0.6 * normal
    return np.round((mixed - mixed.mean()) / mixed.std() * 1024).astype(np.float32) / 1024


_NOISE_TABLE = _noise_table()


def _noise(rng: Generator, rows: int, columns: int) -> NDArray[np.float32]:
    """Returns white noise float32 [rows, columns], with mean 0 and standard deviation 1."""
    words = rng.bit_generator.random_raw((rows * columns + 7) // 8)
    octets = words.astype("<u8", copy=False).view(np.uint8)[: rows * columns]
    return _NOISE_TABLE[octets].reshape(rows, columns)


# --------------------------------------------------------------------------------------------------
# A patient, and what one scan of the patient shows
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _ScanFormat:
    width: int
    height: int
    field_mm: float  # Width of retina that the scan covers.


_FORMATS = (
    _ScanFormat(width=512, height=496, field_mm=6.0),
    _ScanFormat(width=768, height=496, field_mm=9.0),
    _ScanFormat(width=1024, height=496, field_mm=6.0),
    _ScanFormat(width=1536, height=496, field_mm=9.0),
    _ScanFormat(width=512, height=512, field_mm=6.0),
    _ScanFormat(width=384, height=496, field_mm=4.5),
)
# Milder than the real correlation, where 512x512 is only DME; see the module's docstring.
_FORMAT_WEIGHTS = {
    "CNV": (58, 24, 3, 10, 3, 2),
    "DME": (56, 18, 3, 3, 18, 2),
    "DRUSEN": (64, 23, 3, 5, 3, 2),
    "NORMAL": (62, 24, 2, 8, 3, 1),
}


@dataclass(frozen=True, kw_only=True)
class _Patient:
    """What all scans of a patient share; lengths are in mm, or in pixels of 3.87 um depth."""

    curvature: float  # of the eye's back wall, px/mm^2
    tilt: float  # px/mm
    thickness: float  # factor on every layer
    choroid_px: float
    pit_depth: float  # 0..1
    pit_mm: float
    brightness: float
    retina_gain: float  # brightness of the inner retina relative to the pigment epithelium
    speckle: float  # relative standard deviation in tissue
    floor: float  # grey level of the vitreous
    severity: float  # of any disease, 0.3..1; networks did not detect fainter disease
    lesion_mm: float  # position of the disease relative to the fovea
    is_levelled: bool  # whether the scans are rotated to be level, with white corners


def _draw_patient(patient: int, seed: int) -> _Patient:
    rng = generator(_PATIENT_STREAM, seed, patient)
    return _Patient(
        curvature=0.2 + 6.5 * _between(rng, 0, 1) ** 2.2,
        tilt=_between(rng, -9, 9),
        thickness=_between(rng, 0.9, 1.12),
        choroid_px=_between(rng, 35, 85),
        pit_depth=_between(rng, 0.75, 1.0),
        pit_mm=_between(rng, 0.38, 0.6),
        brightness=_between(rng, 0.72, 1.08),
        retina_gain=_between(rng, 0.75, 1.15),
        speckle=_between(rng, 0.12, 0.26),
        floor=_between(rng, 8, 20),
        severity=0.3 + 0.7 * _between(rng, 0, 1) ** 0.9,
        lesion_mm=_between(rng, -1.3, 1.3),
        is_levelled=chance(rng, 0.45),
    )


@dataclass(frozen=True, kw_only=True)
class _Spot:
    """A cyst (dark) or an exudate (bright): an ellipse inside the retina."""

    x_mm: float
    depth: float  # 0 at the top of the inner nuclear layer, 1 at the external membrane
    width_mm: float  # half axis
    height_px: float  # half axis
    grey: float


@dataclass(frozen=True, kw_only=True)
class _Lesions:
    """Disease as curves over the columns, float64 [width], in pixels unless noted otherwise."""

    elevation: Floats  # pigment epithelium above Bruch's membrane
    fluid: Floats  # under the retina
    deposit: Floats  # bright material under the retina
    swelling: Floats  # factor on the layers that swell, 1 where healthy
    roughness: Floats  # factor on the brightness of the outer bands, 1 where healthy
    elevation_grey: float
    spots: tuple[_Spot, ...]


def _waves(rng: Generator, x_mm: Floats, shortest_mm: float, longest_mm: float) -> Floats:
    """Returns a smooth random curve over `x_mm`, about -1 to 1: a sum of five sines."""
    total = np.zeros_like(x_mm)
    for _ in range(5):
        length = shortest_mm * (longest_mm / shortest_mm) ** float(rng.random())
        total += np.sin(x_mm * (2 * math.pi / length) + _between(rng, 0, 2 * math.pi))
    return total / 3


def _bell(x_mm: Floats, centre: float, half_width: float) -> Floats:
    return np.exp(-(((x_mm - centre) / half_width) ** 2))


def _dome(x_mm: Floats, centre: float, half_width: float) -> Floats:
    """Returns a half ellipse: 1 at the centre, 0 beyond the half width."""
    return np.sqrt(np.maximum(0.0, 1 - ((x_mm - centre) / half_width) ** 2))


def _healthy(rng: Generator, x_mm: Floats) -> _Lesions:
    """Returns curves without disease, with the small unevenness of every eye."""
    return _Lesions(
        elevation=np.maximum(0.0, _between(rng, 0.3, 1.6) * _waves(rng, x_mm, 0.25, 1.5)),
        fluid=np.zeros_like(x_mm),
        deposit=np.zeros_like(x_mm),
        swelling=1 + 0.02 * _waves(rng, x_mm, 1.0, 3.0),
        roughness=1 + _between(rng, 0.04, 0.16) * _waves(rng, x_mm, 0.08, 0.6),
        elevation_grey=80.0,
        spots=(),
    )


def _with_drusen(
    rng: Generator, x_mm: Floats, healthy: _Lesions, severity: float, centre: float
) -> _Lesions:
    """Adds bumps of the pigment epithelium with a medium grey inside."""
    elevation = healthy.elevation
    for _ in range(1 + int(severity * _between(rng, 3, 12))):
        half_width = _between(rng, 0.08, 0.14) + 0.16 * severity * float(rng.random())
        height = 1.2 + (1 + 24 * severity) * float(rng.random()) ** 1.2
        bump = _bell(x_mm, centre + _between(rng, -2.2, 2.2), half_width)
        elevation = np.maximum(elevation, height * bump)
    return replace(healthy, elevation=elevation, elevation_grey=_between(rng, 70, 110))


def _with_neovascularisation(
    rng: Generator, x_mm: Floats, healthy: _Lesions, severity: float, centre: float
) -> _Lesions:
    """Adds an irregular detachment of the pigment epithelium, fluid above it, bright deposits."""
    half_width = _between(rng, 0.2, 0.5) + 1.1 * severity * float(rng.random())
    irregular = np.maximum(0.15, 1 + 0.45 * _waves(rng, x_mm, 0.4, 1.6))
    height = 1.5 + severity * _between(rng, 8, 48)
    membrane = height * irregular * _dome(x_mm, centre, half_width)
    fluid = np.zeros_like(x_mm)
    if chance(rng, 0.25 + 0.65 * severity):
        pool = _dome(x_mm, centre + _between(rng, -0.8, 0.8), half_width * _between(rng, 0.8, 1.5))
        fluid = (1.5 + severity * _between(rng, 8, 36)) * pool**1.5
    deposit = np.zeros_like(x_mm)
    if chance(rng, 0.5):
        patch = _dome(x_mm, centre + _between(rng, -0.4, 0.4), half_width * _between(rng, 0.4, 0.9))
        deposit = severity * _between(rng, 5, 22) * patch * irregular
    cysts = _draw_cysts(rng, severity, centre, 4) if chance(rng, 0.3 * severity) else ()
    return _Lesions(
        elevation=np.maximum(healthy.elevation, membrane),
        fluid=fluid,
        deposit=deposit,
        swelling=healthy.swelling + 0.25 * severity * _bell(x_mm, centre, half_width + 0.4),
        roughness=np.clip(
            healthy.roughness
            + (0.1 + 0.6 * severity)
            * _waves(rng, x_mm, 0.08, 0.6)
            * _bell(x_mm, centre, half_width + 0.5),
            0.2,
            1.4,
        ),
        elevation_grey=_between(rng, 70, 135),
        spots=cysts,
    )


def _with_macular_oedema(
    rng: Generator, x_mm: Floats, healthy: _Lesions, severity: float, centre: float
) -> _Lesions:
    """Adds a thickened retina with dark cysts and bright exudates, and sometimes a little fluid."""
    cysts = _draw_cysts(rng, severity, 0.6 * centre, 9)
    fluid = np.zeros_like(x_mm)
    if chance(rng, 0.15):
        fluid = severity * _between(rng, 4, 20) * _dome(x_mm, 0.3 * centre, 0.9) ** 1.5
    return replace(
        healthy,
        fluid=fluid,
        swelling=healthy.swelling
        + severity * _between(rng, 0.15, 0.75) * _bell(x_mm, 0.6 * centre, _between(rng, 0.7, 1.8)),
        spots=cysts + _draw_exudates(rng, severity, centre),
    )


def _draw_cysts(rng: Generator, severity: float, centre: float, most: int) -> tuple[_Spot, ...]:
    return tuple(
        _Spot(
            x_mm=centre + _between(rng, -0.9, 0.9),
            depth=_between(rng, 0.1, 0.85),
            width_mm=0.03 + 0.2 * (0.08 + severity) * float(rng.random()),
            height_px=2.0 + 26 * (0.08 + severity) * float(rng.random()),
            grey=_between(rng, 8, 22) + 14 * (1 - severity),
        )
        for _ in range(1 + int(severity * most * _between(rng, 0.4, 1.1)))
    )


def _draw_exudates(rng: Generator, severity: float, centre: float) -> tuple[_Spot, ...]:
    return tuple(
        _Spot(
            x_mm=centre + _between(rng, -1.8, 1.8),
            depth=_between(rng, 0.2, 0.8),
            width_mm=_between(rng, 0.02, 0.06),
            height_px=_between(rng, 1.5, 4),
            grey=_between(rng, 150, 215),
        )
        for _ in range(int(severity * _between(rng, 0, 9)))
    )


def _draw_lesions(
    rng: Generator, label: str, x_mm: Floats, severity: float, centre: float
) -> _Lesions:
    healthy = _healthy(rng, x_mm)
    if label == "NORMAL":
        return healthy
    if label == "DRUSEN":
        return _with_drusen(rng, x_mm, healthy, severity, centre)
    if label == "DME":
        return _with_macular_oedema(rng, x_mm, healthy, severity, centre)
    before = healthy
    if chance(rng, 0.3):  # Neovascularisation often grows in eyes with drusen.
        before = _with_drusen(rng, x_mm, healthy, 0.5 * severity, centre)
    return _with_neovascularisation(rng, x_mm, before, severity, centre)


# --------------------------------------------------------------------------------------------------
# From layers to pixels. Images are built as [width, height], so that a column of the scan is
# contiguous in memory, and transposed at the end.
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """One band of the healthy retina, with a typical thickness for adult eyes."""

    micrometres: float
    grey: float
    pit: float  # share that is missing at the centre of the fovea; negative if thicker there
    swells: float  # share of a swelling that this layer takes


_MICROMETRES_A_PIXEL = 3.87  # depth of a pixel, as in the real scans
_LAYERS = {
    "nerve_fibre": _Layer(micrometres=30, grey=150, pit=0.97, swells=0.3),
    "ganglion": _Layer(micrometres=78, grey=92, pit=0.95, swells=0.5),
    "inner_nuclear": _Layer(micrometres=40, grey=62, pit=0.93, swells=1.3),
    "outer_plexiform": _Layer(micrometres=28, grey=84, pit=0.8, swells=0.6),
    "outer_nuclear": _Layer(micrometres=78, grey=45, pit=-0.35, swells=1.5),
    "external_membrane": _Layer(micrometres=7, grey=66, pit=0, swells=0),
    "inner_segment": _Layer(micrometres=20, grey=52, pit=-0.1, swells=0),
    "ellipsoid": _Layer(micrometres=17, grey=158, pit=0, swells=0),
    "outer_segment": _Layer(micrometres=21, grey=84, pit=-0.4, swells=0),
    "deposit": _Layer(micrometres=0, grey=118, pit=0, swells=0),
    "fluid": _Layer(micrometres=0, grey=14, pit=0, swells=0),
    "pigment": _Layer(micrometres=27, grey=192, pit=0, swells=0),
    "elevation": _Layer(micrometres=0, grey=90, pit=0, swells=0),
    "bruch": _Layer(micrometres=6, grey=105, pit=0, swells=0),
}
_LAYER_NAMES = tuple(_LAYERS)
_OUTER_BANDS = ("ellipsoid", "outer_segment", "pigment")
# Share of the choroid's grey, by depth below Bruch's membrane in thicknesses of the choroid.
_CHOROID_FADE = (
    (0.05, 0.8),
    (0.3, 0.75),
    (0.7, 0.6),
    (1.1, 0.36),
    (1.8, 0.16),
    (3.0, 0.04),
    (4.5, 0.0),
)
_CHOROID_GREY = 85.0
# Half the depth in pixels of the transition between layers: blurred in the inner retina, sharp in
# the outer one.
_INNER_EDGE, _OUTER_EDGE = 2.2, 0.9


def _layer_thicknesses(
    rng: Generator, patient: _Patient, lesions: _Lesions, x_mm: Floats, slice_mm: float
) -> Floats:
    """Returns the thickness of each of `_LAYERS`, float64 [layer, width], in pixels."""
    radius = np.sqrt(x_mm**2 + slice_mm**2)
    pit = patient.pit_depth * np.exp(-((radius / patient.pit_mm) ** 2))
    rim = 1 + 0.2 * np.exp(-(((radius - 1.1) / 0.6) ** 2)) - 0.05 * np.maximum(0, radius - 1.5)
    # Nerve fibres converge towards the optic nerve, which is at one side of the image.
    fibres = np.clip(1 + 0.35 * x_mm, 0.5, 2.2)
    thicknesses = np.empty((len(_LAYERS), x_mm.size))
    for row, (name, layer) in enumerate(_LAYERS.items()):
        pixels = layer.micrometres / _MICROMETRES_A_PIXEL * patient.thickness
        uneven = 1 + 0.06 * _waves(rng, x_mm, 0.5, 4.0) if layer.micrometres > 25 else 1.0
        shape = rim * (1 - layer.pit * pit) if layer.pit > 0.5 else 1 - layer.pit * pit
        thicknesses[row] = pixels * uneven * shape * (1 + layer.swells * (lesions.swelling - 1))
        if name == "nerve_fibre":
            thicknesses[row] *= fibres
    thicknesses[_LAYER_NAMES.index("elevation")] = lesions.elevation
    thicknesses[_LAYER_NAMES.index("fluid")] = lesions.fluid
    thicknesses[_LAYER_NAMES.index("deposit")] = lesions.deposit
    # A bump from below compresses the outer nuclear layer; the layers above it rise smoothly.
    rise = lesions.elevation + lesions.fluid + lesions.deposit
    outer = thicknesses[_LAYER_NAMES.index("outer_nuclear")]
    pressed = outer + 0.65 * _smooth(rise, 0.4 / float(x_mm[1] - x_mm[0])) - rise
    thicknesses[_LAYER_NAMES.index("outer_nuclear")] = np.maximum(0.3 * outer, pressed)
    return thicknesses


def _smooth(curve: Floats, columns: float) -> Floats:
    """Returns the curve after two running means over about `columns` columns."""
    half = max(1, round(columns / 2))
    window = np.full(2 * half + 1, 1 / (2 * half + 1))
    for _ in range(2):
        curve = np.convolve(np.pad(curve, half, mode="edge"), window, mode="valid")
    return curve


def _back_wall(rng: Generator, patient: _Patient, x_mm: Floats, height: int) -> Floats:
    """Returns the depth of Bruch's membrane, float64 [width], in pixels from the top."""
    tilt = patient.tilt + _between(rng, -4, 4)
    wall = tilt * x_mm - patient.curvature * x_mm**2 + 2.0 * _waves(rng, x_mm, 2.5, 8.0)
    # Keeps about 95 px for the retina above, and the deepest point inside the image.
    wall -= wall.mean()
    return wall + np.clip(_between(rng, 0.36, 0.62) * height, 100 - wall.min(), 0.86 * height)


def _vessel_shadows(rng: Generator, x_mm: Floats) -> Floats:
    """Returns the share of light that is left below the retina's vessels, float64 [width]."""
    light = np.ones_like(x_mm)
    for _ in range(whole(rng, 1, 7)):
        x = _between(rng, float(x_mm[0]), float(x_mm[-1]))
        if abs(x) > 0.5:  # The fovea has no vessels.
            darkest = 0.08 + 0.5 * float(rng.random()) ** 2
            light *= 1 - darkest * _bell(x_mm, x, _between(rng, 0.03, 0.09))
    return light


def _layer_greys(
    patient: _Patient, lesions: _Lesions, thicknesses: Floats, light: Floats
) -> Floats:
    """Returns the grey level of each of `_LAYERS`, float64 [layer, width]."""
    greys = np.empty_like(thicknesses)
    for row, (name, layer) in enumerate(_LAYERS.items()):
        is_inner = row < _LAYER_NAMES.index("external_membrane")
        gain = patient.retina_gain if is_inner else 1.0
        greys[row] = layer.grey * gain * (1.0 if name == "nerve_fibre" else light)
        if name in _OUTER_BANDS:
            greys[row] *= lesions.roughness
    greys[_LAYER_NAMES.index("elevation")] = lesions.elevation_grey * light
    # From the bottom up, because a layer without thickness must look like the layer below it.
    for row in range(len(_LAYERS) - 2, -1, -1):
        if _LAYERS[_LAYER_NAMES[row]].micrometres == 0:
            presence = np.minimum(1.0, thicknesses[row] / 3)
            greys[row] = presence * greys[row] + (1 - presence) * greys[row + 1]
    return greys


def _paint_layers(
    bounds: Floats, greys: Floats, choroid_px: float, light: Floats, floor: float, height: int
) -> NDArray[np.float32]:
    """Paints each column's grey levels by depth.

    Args:
        bounds: float64 [layer + 1, width], upper bound of each layer and lower bound of the last.
        greys: float64 [layer, width], grey level of each layer.
        choroid_px: thickness of the choroid in pixels.
        light: float64 [width], share of light that reaches the choroid.
        floor: grey level outside tissue.
        height: height of the image in pixels.

    Returns:
        float32 [width, height].
    """
    width = bounds.shape[1]
    above = np.vstack([np.full((1, width), floor), greys])
    choroid = floor + _CHOROID_GREY * light * np.array([[fade] for _, fade in _CHOROID_FADE])
    below = np.vstack([greys, choroid[:1]])
    # Two knots per bound, just above and just below it, then the knots of the choroid.
    edges = np.full((bounds.shape[0], 1), _OUTER_EDGE)
    edges[1 : _LAYER_NAMES.index("external_membrane")] = _INNER_EDGE
    layers_y = np.stack([bounds - edges, bounds + edges], axis=1).reshape(-1, width)
    layers_grey = np.stack([above, below], axis=1).reshape(-1, width)
    choroid_y = bounds[-1] + choroid_px * np.array([[depth] for depth, _ in _CHOROID_FADE])
    # Rounded to a grid, because sin and exp may differ in the last bit between processors. From
    # here on, IEEE 754 determines every result, so the pixels are the same everywhere.
    knots_y = _on_grid(np.vstack([layers_y, choroid_y]))
    knots_grey = _on_grid(np.vstack([layers_grey, choroid]))
    knots_y = np.maximum.accumulate(np.clip(knots_y, -2.0, height + 1.0), axis=0)
    # One interpolation for all columns, which are laid out one after another on a long axis.
    stretch = height + 4
    starts = stretch * np.arange(width, dtype=np.float64)
    depths = (starts[:, None] + np.arange(height)).ravel()
    flat = np.interp(depths, (knots_y + starts).T.ravel(), knots_grey.T.ravel())
    return flat.reshape(width, height).astype(np.float32)


def _on_grid(values: Floats) -> Floats:
    return np.round(values * 64) / 64


def _paint_spot(
    image: NDArray[np.float32], spot: _Spot, x_mm: Floats, top: Floats, bottom: Floats
) -> None:
    """Paints an ellipse with a soft edge, in place, where it fits between two bounds."""
    width, height = image.shape
    mm_a_pixel = float(x_mm[1] - x_mm[0])
    column = round((spot.x_mm - float(x_mm[0])) / mm_a_pixel)
    if not 0 <= column < width:
        return
    room = float(bottom[column] - top[column])
    half_height = max(1.5, round(min(spot.height_px, 0.46 * room), 2))
    half_width = max(1.5, round(min(spot.width_mm / mm_a_pixel, 3.0 * half_height), 2))
    middle = float(top[column]) + half_height + spot.depth * max(0.0, room - 2 * half_height)
    row = round(middle)
    left, right = max(0, column - int(half_width) - 3), min(width, column + int(half_width) + 4)
    upper, lower = max(0, row - int(half_height) - 3), min(height, row + int(half_height) + 4)
    if upper >= lower:
        return
    across = (np.arange(left, right) - column) / half_width
    down = (np.arange(upper, lower) - row) / half_height
    distance = np.sqrt(across[:, None] ** 2 + down[None, :] ** 2)
    edge = max(0.12, 1.5 / min(half_width, half_height))
    cover = np.clip((1 - distance) / edge + 0.5, 0, 1)
    window = image[left:right, upper:lower]
    window += ((spot.grey - window) * cover).astype(np.float32)


def _paint_choroid_vessels(
    image: NDArray[np.float32], rng: Generator, bruch: Floats, choroid_px: float, mm_a_pixel: float
) -> None:
    """Paints the choroid's dark vessels in brighter tissue along the back wall, in place."""
    width, height = image.shape
    depth = int(1.8 * choroid_px)
    mottle = np.zeros((depth, width), np.float32)
    # Two scales, because small vessels are between large ones; both fade out with depth.
    for cell_mm, cell_rows, strength in ((0.2, 9, 0.13), (0.55, 20, 0.17)):
        cell_columns = max(4, int(cell_mm / mm_a_pixel))
        coarse = _noise(rng, depth // cell_rows + 2, width // cell_columns + 2)
        smooth = Image.fromarray(coarse).resize((width, depth), Image.Resampling.BICUBIC)
        mottle += np.float32(strength) * np.asarray(smooth)
    mottle *= np.linspace(1, 0, depth, dtype=np.float32)[:, None]
    factors = np.clip(1 + mottle.T, 0.4, 1.6)
    rows = (np.round(bruch).astype(np.intp) + 3)[:, None] + np.arange(depth)
    columns = np.broadcast_to(np.arange(width)[:, None], rows.shape)
    inside = (rows >= 0) & (rows < height)
    image[columns[inside], rows[inside]] *= factors[inside]


def _paint_hyaloid(
    image: NDArray[np.float32], rng: Generator, x_mm: Floats, surface: Floats
) -> None:
    """Paints the thin grey membrane in front of some retinas, in place."""
    gap = _between(rng, 6, 70) + _between(rng, 4, 14) * (x_mm - _between(rng, -2, 2))
    line = surface.min() - gap + 3 * _waves(rng, x_mm, 1.5, 5)
    rows = np.round(line).astype(np.intp)
    seen = _waves(rng, x_mm, 1.0, 6.0) > -0.2
    seen &= (rows >= 1) & (rows < np.minimum(surface, image.shape[1]) - 5)
    columns = np.flatnonzero(seen)
    grey = np.float32(_between(rng, 12, 50))
    for offset, share in ((-1, 0.5), (0, 1.0), (1, 0.5)):
        image[columns, rows[columns] + offset] += np.float32(share) * grey


def _speckled(image: NDArray[np.float32], rng: Generator, patient: _Patient) -> NDArray[np.uint8]:
    """Adds a scanner's noise to float32 grey levels; returns uint8 of the same shape."""
    width, height = image.shape
    fine = _noise(rng, width + 1, height + 1)
    # Neighbours share noise: horizontally it correlates by about 0.35 in the real scans' vitreous.
    grain = fine[:-1, :-1] + 0.4 * fine[1:, :-1] + 0.3 * fine[:-1, 1:]
    noisy = image * (1 + np.float32(patient.speckle * 0.88) * grain)
    noisy += np.float32(0.4 * patient.floor) * grain
    return np.clip(noisy, 0, 250).astype(np.uint8)


def _levelled(pixels: NDArray[np.uint8], rng: Generator, slope: float) -> NDArray[np.uint8]:
    """Rotates a scan to be level and shifts it, as the Kermany archive does, with white corners.

    Args:
        pixels: uint8 [height, width].
        rng: gives the error of the angle and the shift.
        slope: slope of the retina in pixels per pixel, which the rotation roughly removes.

    Returns:
        uint8 [height, width].
    """
    height, width = pixels.shape
    angle = min(0.08, max(-0.08, math.atan(slope) + _between(rng, -0.03, 0.03)))
    cosine, sine = round(math.cos(angle), 6), round(math.sin(angle), 6)
    middle_x, middle_y = width / 2, height / 2
    down = _between(rng, -1, 1) ** 3 * 0.16 * height
    # Pillow takes the inverse transform, from a position in the result to one in the source.
    way_back = (
        cosine,
        -sine,
        middle_x - cosine * middle_x + sine * middle_y,
        sine,
        cosine,
        middle_y - sine * middle_x - cosine * middle_y - down,
    )
    image = Image.fromarray(pixels)
    # Nearest neighbour, as in the real scans; interpolation would smooth the speckle.
    turned = image.transform(
        image.size, Image.Transform.AFFINE, way_back, Image.Resampling.NEAREST, fillcolor=255
    )
    return np.asarray(turned)


def draw_bscan(label: str, patient: int, index: int, seed: int) -> np.ndarray:
    """Draws one OCT-like B-scan, which depends only on the arguments.

    The pixels are the same on every machine with the same version of Pillow, which does the
    rotation and a resize.

    Args:
        label: one of `LABEL_NAMES`.
        patient: number of the patient, not negative; its scans share anatomy and severity.
        index: number of the scan within the patient, not negative.
        seed: seed of the whole dataset, not negative.

    Returns:
        uint8 [height, width], grey; mostly 496 x 512, else 496 x {384, 768, 1024, 1536} or
        512 x 512. A pixel is 3.87 um deep.
    """
    anatomy = _draw_patient(patient, seed)
    rng = generator(_SCAN_STREAM, seed, patient, LABEL_NAMES.index(label), index)
    scan = _FORMATS[_weighted(rng, _FORMAT_WEIGHTS[label])]
    mm_a_pixel = scan.field_mm / scan.width
    x_mm = (np.arange(scan.width) - scan.width / 2) * mm_a_pixel + _between(rng, -0.6, 0.6)

    severity = min(1.0, anatomy.severity * _between(rng, 0.6, 1.15))
    lesions = _draw_lesions(
        rng, label, x_mm, severity, anatomy.lesion_mm + _between(rng, -0.4, 0.4)
    )
    slice_mm = _between(rng, -1, 1) ** 3  # Most slices of the archive pass near the fovea.
    thicknesses = _layer_thicknesses(rng, anatomy, lesions, x_mm, slice_mm)
    bruch = _back_wall(rng, anatomy, x_mm, scan.height)
    bounds = np.vstack([bruch - np.cumsum(thicknesses[::-1], axis=0)[::-1], bruch])
    light = _vessel_shadows(rng, x_mm)
    greys = _layer_greys(anatomy, lesions, thicknesses, light)

    image = _paint_layers(bounds, greys, anatomy.choroid_px, light, anatomy.floor, scan.height)
    bounds = _on_grid(bounds)
    _paint_choroid_vessels(image, rng, bounds[-1], anatomy.choroid_px, mm_a_pixel)
    top = bounds[_LAYER_NAMES.index("inner_nuclear")]
    bottom = bounds[_LAYER_NAMES.index("external_membrane")]
    for spot in lesions.spots:
        _paint_spot(image, spot, x_mm, top, bottom)
    if chance(rng, 0.2):
        _paint_hyaloid(image, rng, x_mm, bounds[0])
    vignette = 1 - _between(rng, 0.05, 0.35) * ((x_mm - x_mm.mean()) / (scan.field_mm / 2)) ** 2
    image *= _on_grid(anatomy.brightness * _between(rng, 0.9, 1.1) * vignette)[:, None]
    pixels = np.ascontiguousarray(_speckled(image, rng, anatomy).T)
    if anatomy.is_levelled:
        return _levelled(pixels, rng, float(bounds[-1][-1] - bounds[-1][0]) / scan.width)
    return pixels


def encode_jpeg(pixels: np.ndarray) -> bytes:
    """Encodes a scan as the Kermany archive does.

    Args:
        pixels: uint8 [height, width], grey.

    Returns:
        a JPEG file of mode L. The quality is 75, but 90 for 512 x 512, because real scans of that
        size also have a finer quantization table.
    """
    quality = 90 if pixels.shape[0] == 512 else 75
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG", quality=quality)
    return buffer.getvalue()
