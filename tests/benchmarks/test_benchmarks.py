"""The benchmarks run; what they measure on so little says nothing."""

import json
import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from image_files import jpeg

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory for benchmarks, with a sample in the real archive's shape."""
    folder = tmp_path_factory.mktemp("benchmarks")
    (folder / "pipelines").symlink_to(ROOT / "pipelines")
    write_sample(folder / "sample.zip", 24)
    return folder


def write_sample(path, num_images):
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(num_images):
            split, label = ("train", "test")[number % 2], ("CNV", "DME")[number // 2 % 2]
            name = f"OCT2017 /{split}/{label}/{label}-{number}-1.jpeg"
            archive.writestr(name, jpeg(number, 120, 100))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("build_speed.py --sample sample.zip --num_images 40 --repeats 1", "median ratio"),
        ("resize_speed.py --sample sample.zip --rounds 1 --num_shapes 9", "0 of 9 random pictures"),
        ("build_memory.py --sample sample.zip --num_images 20 40", "ratios, 40 to 20 images"),
        ("near_duplicates.py --input sample.zip --num_images 6", "promised"),
        ("near_duplicates.py --input sample.zip --sizes 28 64 --num_copied 2", "for: 0.93"),
        (
            "read_speed.py --num_images 640 --ways mmap tfrecord --rounds 1 --seconds 0.1",
            "mmap / tfrecord",
        ),
        ("read_speed.py --num_images 640 --cold --rounds 1", "of cat"),
        ("bucket.py --num_images 256", "no limit, epoch 1, tf.data"),
        (
            "interval_coverage.py --num_groups 20 --num_samples 2 --num_permutations 1",
            "| 400 | 4 |",
        ),
    ],
)
def test_a_benchmark_runs_on_a_small_scale(folder, command, shown):
    check(folder, command, shown)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_measured_on_a_gpu_runs_on_a_cpu(folder):
    backend = "jax" if find_spec("jax") else "tensorflow"
    check(folder, f"gpu.py --quick --backend {backend}", "| convnet | 1 |")
    (result,) = json.loads((folder / "gpu.json").read_text())["backends"]
    (row,) = result["models"]
    assert set(row["images_per_second"]) == {"device", "reader", "decode", "grain"}
    assert row["as_trained"]["step_ms"] > 0


def check(folder, command, shown):
    script, *flags = command.split()
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *flags],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
