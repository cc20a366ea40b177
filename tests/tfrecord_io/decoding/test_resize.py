"""The kernel in C resizes as Pillow does, to the byte, and never leaves its memory."""

import os
import shutil
import subprocess
import sys
import sysconfig

import numpy as np
import pytest
from builds import ROOT
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from tfrecord_io.decoding import resize
from tfrecord_io.decoding.options import Preprocessing

KERNEL = "tfrecord_io/decoding/_resize.c"
needs_kernel = pytest.mark.skipif(resize._kernel is None, reason="the C kernel was not built")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def picture(channels, width, height, content="random"):
    shape = (height, width) if channels == 1 else (height, width, 3)
    values = np.random.default_rng(width).integers(0, 256, shape, np.uint8)
    values = {"white": 255, "edges": values // 128 * 255}.get(content, values)
    return Image.fromarray(np.broadcast_to(np.uint8(values), shape).copy())


def both(image, **options):
    """Returns the bytes of the kernel and those of Pillow."""
    options = Preprocessing(channels=len(image.getbands()), **options)
    box = options.box(*image.size)
    return resize._by_kernel(image, box, options), resize._by_pillow(image, box, options).tobytes()


sides = st.one_of(st.integers(1, 40), st.integers(1, 300))


@needs_kernel
@given(
    channels=st.sampled_from([1, 3]),
    old=st.tuples(sides, sides),
    new=st.tuples(sides, sides),
    name=st.sampled_from(["bilinear", "box"]),
    fit=st.sampled_from(["stretch", "pad"]),
    content=st.sampled_from(["random", "white", "edges"]),
)
def test_the_kernel_gives_the_bytes_of_pillow(channels, old, new, name, fit, content):
    assume(old[1] <= 100 * old[0])  # Pillow resizes what is higher
    image = picture(channels, old[0], old[1], content)
    found, expected = both(image, width=new[0], height=new[1], resize=name, fit=fit)
    assert found == expected


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((4200, 4200), {}),  # in several blocks of memory
        ((600_000, 1), {}),  # too wide for the memory that is kept
        ((2, 201), {}),  # so high that the height comes first
        ((30, 20), {"resize": "lanczos"}),
    ],
)
def test_pillow_resizes_what_the_kernel_does_not(size, options):
    image = Image.new("L", size, 9)
    assert both(image, width=3, height=2, **options)[0] is None
    options = Preprocessing(width=3, height=2, **options)
    assert resize.stored_pixels(image, (0, 0, 3, 2), options) == bytes([9] * 6)


def test_without_the_kernel_pillow_resizes(monkeypatch):
    image, options = picture(3, 30, 20), Preprocessing(width=7, height=9, channels=3)
    expected = resize.stored_pixels(image, (0, 0, 7, 9), options)
    monkeypatch.setattr(resize, "_kernel", None)
    assert resize.stored_pixels(image, (0, 0, 7, 9), options) == expected


# What runs in a process whose memory is watched.
EDGES = """
import importlib.util, sys
import numpy as np
sys.path[:0] = ["tests/helpers", "tests/tfrecord_io/decoding"]
from test_resize import OFF, arguments, both, changed, picture
from tfrecord_io.decoding import resize
spec = importlib.util.spec_from_file_location("_resize", sys.argv[1])
resize._kernel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(resize._kernel)
SIDES = (1, 2, 15, 16, 17, 63, 64, 65)
sizes = [(w, h) for w in SIDES for h in SIDES] + [(65_500, 1), (65_500, 17), (400, 40_000)]
for size in sizes:
    for channels in (1, 3):
        for name, fit in (("bilinear", "stretch"), ("box", "pad")):
            for new in ((1, 1), (7, 65), (65, 16)):
                options = {"width": new[0], "height": new[1], "resize": name, "fit": fit}
                found, expected = both(picture(channels, *size), **options)
                is_of_pillow = size[1] > 100 * size[0] or 4 * size[0] * size[1] > 2**24
                assert found == expected or is_of_pillow and found is None, (size, channels)
# Arguments that do not fit together, each other than right by some bytes, sizes or places.
generator, refused = np.random.default_rng(0), 0
for _ in range(20_000):
    right = arguments(generator)
    place, by = int(generator.integers(len(right))), int(generator.choice(OFF))
    right[place] = changed(right[place], by, generator)
    try:
        resize._kernel.resize(*right)
    except (ValueError, OverflowError):
        refused += 1
assert refused > 10_000, refused
"""


#: By how much an argument is wrong.
OFF = (-(2**40), -65, -4, -1, 1, 3, 64, 2**31, 2**40, 2**62)


def arguments(generator):
    """Returns the arguments of the kernel for a picture of a drawn size."""
    width, height, columns, rows = map(int, generator.integers(1, 70, 4))
    unit = int(generator.choice([1, 4]))
    samples = 1 if unit == 1 else 3
    step = -(-columns * unit // 64) * 64
    memory = bytearray(64 * (width + columns) * unit + step * (height + 63 + rows))
    canvas = bytearray(samples * columns * rows)
    weights = (resize._weights(*sides, "bilinear") for sides in ((width, columns), (height, rows)))
    return [bytes(width * height * unit), width, unit, *weights, columns, rows, memory, canvas, 0,
            samples * columns]  # fmt: skip


def changed(value, by, generator):
    """Returns an argument that is wrong: another number, buffer or entry of a table."""
    if isinstance(value, int):
        return value + by
    if isinstance(value, np.ndarray) and generator.random() < 0.7:
        value = value.copy()
        value.flat[int(generator.integers(value.size))] += np.int32(by % 2**32 - 2**31)
        return value
    if isinstance(value, np.ndarray):
        return value[: len(value) - 1] if by < 0 else np.concatenate([value, value[:1]])
    return value[: max(len(value) + max(by, -99), 0)] if by < 0 else value[: len(value) - by % 9]


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["-DPLAIN"]], ids=["AVX2", "plain"])
def test_no_edge_of_a_picture_makes_the_kernel_leave_its_memory(tmp_path, flags):
    built = tmp_path / "_resize.so"
    include = sysconfig.get_paths()["include"]
    watch = ["-fsanitize=address,undefined", "-fno-sanitize-recover", "-shared", "-fPIC"]
    subprocess.run(["cc", "-O1", *watch, *flags, f"-I{include}", ROOT / KERNEL, "-o", built],
                   check=True)  # fmt: skip
    library = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    env = {**os.environ, "LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0",
           "PYTHONMALLOC": "malloc", "PYTHONPATH": str(ROOT)}  # fmt: skip
    subprocess.run([sys.executable, "-c", EDGES, built], cwd=ROOT, env=env, check=True)


@needs_kernel
def test_the_kernel_refuses_arguments_that_do_not_fit_together():
    generator = np.random.default_rng(1)
    right = arguments(generator)
    resize._kernel.resize(*right)
    wrong = {0: bytes(3), 1: 0, 2: 2, 3: right[3][:-1], 5: -1, 7: bytearray(9), 9: 1, 10: 2**40}
    for place, value in wrong.items():
        with pytest.raises(ValueError, match=r"\w"):
            resize._kernel.resize(*right[:place], value, *right[place + 1 :])


def test_an_installation_without_a_compiler_goes_on(tmp_path):
    for name in ("setup.py", "tfrecord_io/version.py", KERNEL):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=tmp_path, env={**os.environ, "CC": "no-such-compiler"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("*.so"))
