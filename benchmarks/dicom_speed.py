"""How close is the build of DICOM files to a process pool that only decodes and resizes them?

    python benchmarks/dicom_speed.py --num_images 5000

Files of 12 bits in 16, of one frame each, in a folder: uncompressed, RLE, JPEG-LS
and JPEG 2000. The pool calls pydicom and Pillow, as the build's workers do, and reads no header
beforehand. The job's time is that of the whole command. The pool runs before and after each job.
The last column is the listing alone: the headers of all files, read by a process per core.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import shutil
import statistics
import time
import zipfile
from pathlib import Path

import numpy as np
import pydicom
import sample_archive
from PIL import Image
from pydicom import uid

from pipelines.listing.listing import ListingOptions, list_images
from pipelines.sources.directory import DirectorySource

SYNTAXES = {
    "uncompressed": uid.ExplicitVRLittleEndian,
    "RLE": uid.RLELossless,
    "JPEG-LS": uid.JPEGLSLossless,
    "JPEG 2000": uid.JPEG2000Lossless,
}

# Different pictures; the files are copies of them with another number.
_NUM_PICTURES = 60


def make_files(folder: Path, sample: Path, syntax: uid.UID, num_images: int) -> None:
    """Writes DICOM files of real scans, whose eight bits get four random ones below them."""
    shutil.rmtree(folder, ignore_errors=True)
    generator = np.random.default_rng(0)
    with zipfile.ZipFile(sample) as archive:
        names = [
            name
            for name in sorted(archive.namelist())
            if name.endswith(".jpeg") and "__MACOSX" not in name
        ][:_NUM_PICTURES]
        pictures = [Image.open(io.BytesIO(archive.read(name))).convert("L") for name in names]
    templates = []
    for picture in pictures:
        levels = np.asarray(picture).astype(np.uint16) * 16
        templates.append(_dataset(levels + generator.integers(16, size=levels.shape), syntax))
    for number in range(num_images):
        dataset = templates[number % len(templates)]
        dataset.PatientID = f"{number // 4:06d}"
        path = folder / ("CNV", "NORMAL")[number % 2] / f"{number:06d}.dcm"
        path.parent.mkdir(parents=True, exist_ok=True)
        dataset.save_as(path, enforce_file_format=True)


def _dataset(levels: np.ndarray, syntax: uid.UID) -> pydicom.Dataset:
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
    dataset.SOPClassUID = uid.OphthalmicPhotography16BitImageStorage
    dataset.SOPInstanceUID = uid.generate_uid(entropy_srcs=["benchmark"])
    dataset.PatientID = ""
    dataset.set_pixel_data(levels.astype(np.uint16), "MONOCHROME2", bits_stored=12)
    if syntax != uid.ExplicitVRLittleEndian:
        dataset.compress(syntax, generate_instance_uid=False)
    return dataset


def _decode(path: Path) -> int:
    """Makes only pydicom's and Pillow's calls of the build; returns the number of bytes."""
    pixels = pydicom.dcmread(path).pixel_array
    return len(Image.fromarray(pixels).resize((224, 224), Image.Resampling.BILINEAR).tobytes())


def pool_seconds(folder: Path) -> float:
    """Returns the wall time of the pool for all files of a folder."""
    paths = sorted(folder.rglob("*.dcm"))
    start = time.perf_counter()
    with multiprocessing.Pool(len(os.sched_getaffinity(0))) as pool:
        total = sum(pool.imap_unordered(_decode, paths, chunksize=16))
    assert total == len(paths) * 224 * 224 * 2
    return time.perf_counter() - start


def listing_seconds(folder: Path) -> float:
    """Returns the wall time of listing a folder and reading the headers of its files."""
    source = DirectorySource(folder)
    start = time.perf_counter()
    list_images(source, ListingOptions())
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_images", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--encodings", nargs="+", choices=SYNTAXES, default=list(SYNTAXES))
    parser.add_argument(
        "--sample", type=Path, default=Path("../shared/data/kermany2018-sample.zip")
    )
    args = parser.parse_args()
    print(f"{args.num_images:,} files, in images/s, medians of {args.repeats}:\n")
    print("| encoding | pool | job | ratio | listing |")
    print("| --- | --- | --- | --- | --- |")
    folder = sample_archive.WORK_DIR / "dicom_files"
    for name in args.encodings:
        make_files(folder, args.sample, SYNTAXES[name], args.num_images)
        pools, jobs = [pool_seconds(folder)], []
        for _ in range(args.repeats):
            jobs.append(sample_archive.build_seconds(folder))
            pools.append(pool_seconds(folder))
        ratios = [
            (before + after) / 2 / job
            for before, job, after in zip(pools, jobs, pools[1:], strict=False)
        ]
        rates = [
            f"{args.num_images / seconds:,.0f}"
            for seconds in (statistics.median(pools), statistics.median(jobs))
        ]
        listing = f"{args.num_images / listing_seconds(folder):,.0f}"
        ratio = f"{statistics.median(ratios):.3f}"
        print(f"| {name} | {' | '.join(rates)} | {ratio} | {listing} |", flush=True)
    shutil.rmtree(folder)
    print("\nwanted: a ratio of 0.90")


if __name__ == "__main__":
    main()
