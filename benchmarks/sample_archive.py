"""Large archives made from the real sample, by repeating its images under new names."""

from __future__ import annotations

import zipfile
from pathlib import Path

#: Folder for the files of benchmarks; git ignores it.
WORK_DIR = Path("data/benchmarks")


def make_archive(sample: Path, num_images: int, *, stored: bool = False) -> Path:
    """Returns a zip in the real archive's shape (one tree) with that many images; made once.

    Args:
        sample: the sample zip of real scans.
        num_images: images wanted; the sample's are repeated under new patient numbers.
        stored: without compression, as the members of many archives of JPEGs are.
    """
    path = WORK_DIR / f"oct-{num_images}{'-stored' if stored else ''}.zip"
    if path.exists():
        return path
    WORK_DIR.mkdir(parents=True, exist_ok=True)
    images = _read_images(sample)
    temporary = path.with_suffix(".tmp")
    method = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(temporary, "w", method, compresslevel=1) as archive:
        for number in range(num_images):
            name, data = images[number % len(images)]
            archive.writestr(_rename(name, number // len(images)), data)
    temporary.rename(path)
    return path


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
