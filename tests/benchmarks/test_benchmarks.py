"""The benchmarks run; what they measure on so little says nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from image_files import jpeg, write_zip

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory for benchmarks, with a sample in the real archive's shape."""
    folder = tmp_path_factory.mktemp("benchmarks")
    (folder / "pipelines").symlink_to(ROOT / "pipelines")
    names = (f"OCT2017 /{split}/{label}/{label}-{number}-1.jpeg" for number in range(6)
             for split in ("train", "test") for label in ("CNV", "DME"))  # fmt: skip
    write_zip(folder / "sample.zip", {name: jpeg(n, 120, 100) for n, name in enumerate(names)})
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("build_speed.py --sample sample.zip --num_images 40 --repeats 1", "median ratio"),
        ("resize_speed.py --sample sample.zip --rounds 1 --num_shapes 9", "0 of 9 random pictures"),
        ("build_memory.py --sample sample.zip --num_images 20 40", "| 40 |"),
        ("near_duplicates.py --input sample.zip --num_images 6", "promised"),
        ("near_duplicates.py --input sample.zip --sizes 28 64 --num_copied 2", "for: 0.93"),
        (
            "read_speed.py --num_images 640 --ways mmap tfrecord --rounds 1 --seconds 0.1",
            "mmap / tfrecord",
        ),
        ("read_speed.py --num_images 640 --cold --rounds 1", "of cat"),
        ("bucket.py --num_images 256", "a quarter cached, epoch 2"),
        (
            "gpu.py --models convnet --batch_size 8 --image_size 32 --num_images 64 --steps 2 "
            "--rounds 1 --precision float32",
            "| convnet |",
        ),
        (
            "interval_coverage.py --num_groups 20 --num_samples 2 --num_permutations 1",
            "| 400 | 4 |",
        ),
    ],
)
def test_a_benchmark_runs_on_a_small_scale(folder, command, shown):
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
