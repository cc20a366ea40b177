"""A tree of drawn scans with one flaw of each kind."""

import functools
import io

import numpy as np
from image_files import encoded
from PIL import Image

from pipelines.sources import synthetic

LABELS = ("CNV", "NORMAL")


@functools.cache
def scan(label: str, patient: int, index: int) -> bytes:
    """Returns a drawn scan as a JPEG file, at half size to be quick to read."""
    image = Image.fromarray(synthetic.draw_bscan(label, patient, index, 0)).reduce(2)
    return encoded(image, "JPEG", quality=90)


def pixels(data: bytes) -> np.ndarray:
    """Returns uint8 [height, width]."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("L"))


def saved_again(data: bytes, quality: int) -> bytes:
    return encoded(pixels(data), "JPEG", quality=quality)


def brightened(data: bytes, by: int) -> bytes:
    bright = np.clip(pixels(data).astype(int) + by, 0, 255)
    return encoded(bright.astype(np.uint8), "JPEG", quality=90)


def clean_files() -> dict[str, bytes]:
    """Returns scans without a flaw: each patient in one split, several scans of each."""
    files = {}
    patients = {"train": range(1, 9), "val": range(21, 23), "test": range(31, 34)}
    for split, numbers in patients.items():
        for patient in numbers:
            label = LABELS[patient % 2]
            for index in range(1, 4):
                name = f"{split}/{label}/{label}-{patient}-{index}.jpeg"
                files[name] = scan(label, patient, index)
    return files


#: What is planted: name of the new file, and the name of the clean one that it is made of.
LEAKED_PATIENT = "test/NORMAL/NORMAL-2-7.jpeg"
SAME_FILE = ("train/NORMAL/NORMAL-1-99.jpeg", "train/NORMAL/NORMAL-1-1.jpeg")
SAME_PIXELS = ("val/CNV/CNV-41-1.png", "train/CNV/CNV-2-1.jpeg")
SAVED_AGAIN = ("test/CNV/CNV-42-1.jpeg", "train/CNV/CNV-4-2.jpeg")
BRIGHTENED = ("test/NORMAL/NORMAL-43-1.jpeg", "val/NORMAL/NORMAL-21-1.jpeg")
CONFLICT = ("train/CNV/CNV-44-1.jpeg", "train/NORMAL/NORMAL-3-3.jpeg")


def planted_files() -> dict[str, bytes]:
    """Returns the clean scans and one flaw of each kind."""
    files = clean_files()
    files[LEAKED_PATIENT] = scan("NORMAL", 2, 7)
    files[SAME_FILE[0]] = files[SAME_FILE[1]]
    files[SAME_PIXELS[0]] = encoded(pixels(files[SAME_PIXELS[1]]), "PNG")
    files[SAVED_AGAIN[0]] = saved_again(files[SAVED_AGAIN[1]], 60)
    files[BRIGHTENED[0]] = brightened(files[BRIGHTENED[1]], 25)
    files[CONFLICT[0]] = files[CONFLICT[1]]
    return files
