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


@needs_kernel
def test_pixels_of_the_files_own_are_read_where_they_are_and_others_from_a_copy():
    of_array = picture(1, 30, 20)
    of_file = of_array.copy()
    assert (of_array.readonly, of_file.readonly) == (1, 0)
    assert len({*both(of_array, width=7, height=9), *both(of_file, width=7, height=9)}) == 1


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


def test_without_the_kernel_pillow_resizes_and_it_is_said(monkeypatch):
    image, options = picture(3, 30, 20), Preprocessing(width=7, height=9, channels=3)
    expected = resize.stored_pixels(image, (0, 0, 7, 9), options)
    monkeypatch.setattr(resize, "_kernel", None)
    assert resize.stored_pixels(image, (0, 0, 7, 9), options) == expected
    assert resize.resizer() == "Pillow (the C kernel was not built)"
    monkeypatch.setattr(resize, "_kernel", True)
    assert resize.resizer() == resize.resizer("box") == "the C kernel"
    assert resize.resizer("lanczos") == "Pillow"


# What runs in a process whose memory is watched.
EDGES = """
import importlib.util, sys
sys.path[:0] = ["tests/helpers", "tests/tfrecord_io/decoding"]
from test_resize import both, picture
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
"""


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
