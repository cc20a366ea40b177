"""Large archives made from the real sample, by repeating its images under new names."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

#: Folder for the files of benchmarks; git ignores it.
WORK_DIR = Path("data/benchmarks")
#: The sample, where a benchmark does not name another place.
SAMPLE = Path("../shared/data/kermany2018-sample.zip")


def make_archive(sample: Path, num_images: int, *, stored: bool) -> Path:
    """Returns a zip of that many images; made once.

    The sample's images are repeated under new patient numbers, and compressed if not `stored`.
    """
    path = WORK_DIR / f"oct-{num_images}{'-stored' if stored else ''}.zip"
    if path.exists():
        return path
    WORK_DIR.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(sample) as archive:
        names = [n for n in archive.namelist() if n.startswith("OCT2017 /") and n.endswith(".jpeg")]
        images = [(name, archive.read(name)) for name in names]
    method = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path.with_suffix(".tmp"), "w", method, compresslevel=1) as archive:
        for number in range(num_images):
            name, data = images[number % len(images)]
            label, patient, index = name.rsplit("-", 2)
            archive.writestr(f"{label}-{number // len(images)}{patient}-{index}", data)
    return path.with_suffix(".tmp").rename(path)


def build_command(archive: Path) -> list[str]:
    """Returns the command that builds a dataset of an archive, in a folder without one."""
    output = WORK_DIR / "build"
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "pipelines/build_tfrecords.py", "--source", "archive"]
    return [*command, "--input", str(archive), "--output", str(output)]
