"""Large archives made from the real sample, by repeating its images under new names."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

#: Folder for the files of benchmarks; git ignores it.
WORK_DIR = Path("data/benchmarks")


def make_archive(
    sample: Path, num_images: int, *, stored: bool = False, unique: bool = False
) -> Path:
    """Returns a zip in the real archive's shape (one tree) with that many images; made once.

    Args:
        sample: the sample zip of real scans.
        num_images: images wanted; the sample's are repeated under new patient numbers.
        stored: without compression, as the members of many archives of JPEGs are.
        unique: each file has other bytes, by a comment, and the pixels of the sample's.
    """
    kind = f"{'-unique' if unique else ''}{'-stored' if stored else ''}"
    path = WORK_DIR / f"oct-{num_images}{kind}.zip"
    if path.exists():
        return path
    WORK_DIR.mkdir(parents=True, exist_ok=True)
    images = _read_images(sample)
    temporary = path.with_suffix(".tmp")
    method = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(temporary, "w", method, compresslevel=1) as archive:
        for number in range(num_images):
            name, data = images[number % len(images)]
            if unique:  # a comment (ISO/IEC 10918-1, B.2.4.5) of eight digits
                data = data[:2] + b"\xff\xfe\0\x0a" + b"%08d" % number + data[2:]
            archive.writestr(_rename(name, number // len(images)), data)
    temporary.rename(path)
    return path


def build_seconds(path: Path, *options: str) -> float:
    """Returns the wall time of the build command.

    Args:
        path: the zip or folder of images.
        *options: further words of the command.
    """
    output = WORK_DIR / "build_seconds"
    seconds = build(path, output, *options)
    shutil.rmtree(output)
    return seconds


def build(path: Path, output: Path, *options: str) -> float:
    """Builds a dataset anew in a folder; for the rest see `build_seconds`."""
    shutil.rmtree(output, ignore_errors=True)
    source = "directory" if path.is_dir() else "archive"
    words = ("--source", source, "--input", str(path), "--output", str(output), *options)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "pipelines/build_tfrecords.py", *words],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - start


def _read_images(sample: Path) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(sample) as archive:
        return [
            (name, archive.read(name))
            for name in archive.namelist()
            if name.startswith("OCT2017 /") and name.endswith(".jpeg")
        ]


def _rename(name: str, round_number: int) -> str:
    """Changes the patient number in a name like `…/CNV-1016042-1.jpeg` for each round."""
    folder, _, file_name = name.rpartition("/")
    label, patient, index = file_name.split("-")
    return f"{folder}/{label}-{round_number}{patient}-{index}"
