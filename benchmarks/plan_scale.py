"""How much time and memory do listing and planning take, from 84,484 to 10 million images?

    python benchmarks/plan_scale.py

The listing is simulated: names and sizes like those of the real archive are generated and passed
through the code that lists a real archive. Each size runs in its own process, so that the peaks of
memory are independent.
"""

from __future__ import annotations

import argparse
import io
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

from pipelines.listing.classes import with_classes
from pipelines.listing.listing import ListingOptions, list_images
from pipelines.planning import plan
from pipelines.sources.source import Member, Reader, Source

_LABELS = ("CNV", "DME", "DRUSEN", "NORMAL")


class Blank(Reader):
    """Reads files without content, which cannot be decoded."""

    def __enter__(self) -> Blank:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def read(self, member: Member) -> bytes:
        """Returns no bytes."""
        return b""


class Simulated(Source):
    """A simulated archive, of so many images."""

    def __init__(self, num_images: int) -> None:
        self._num_images = num_images

    def describe(self) -> dict[str, str]:
        """Returns the archive's entry in a manifest."""
        return {"kind": "simulated"}

    def open(self) -> Blank:
        """Returns a reader of the archive."""
        return Blank()

    def members(self) -> Iterator[Member]:
        """Yields the members of the archive."""
        for number in range(self._num_images):
            split = ("train", "train", "train", "val", "test")[number % 5]
            label = _LABELS[number % 4]
            name = f"OCT2017 /{split}/{label}/{label}-{number // 12}-{number % 12}.jpeg"
            yield Member(name, 65_000, number * 65_100, 65_000, number)


def measure(num_images: int) -> str:
    """Returns a row of the table: time and memory for this number of images."""
    start = time.perf_counter()
    listing = with_classes(list_images(Simulated(num_images), ListingOptions()), ListingOptions())
    listed = time.perf_counter()
    digest = listing.digest
    refs, tasks = plan.make_plan(listing.table, 50_295, plan.PlanOptions())
    planned = time.perf_counter()
    size = CountedBytes()
    plan.write_refs(size, refs, tasks, "0" * 64)
    written = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    assert refs.num_rows == num_images
    assert len(digest) == 64
    seconds = (listed - start, planned - listed, written - planned)
    return " | ".join(
        [
            f"| {num_images:,}",
            *(f"{value:.1f}" for value in seconds),
            f"{sum(seconds) / num_images * 1e6:.2f}",
            f"{size.num_bytes / num_images:.0f}",
            f"{peak:.2f} |",
        ]
    )


class CountedBytes(io.RawIOBase):
    """A file that counts the bytes written to it and drops them."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def writable(self) -> bool:
        """Returns True, as `io` requires of a file to write to."""
        return True

    def write(self, data: bytes) -> int:
        """Counts the bytes and drops them."""
        self.num_bytes += len(data)
        return len(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_images", type=int, help="measure one size, in this process")
    args = parser.parse_args()
    if args.num_images:
        print(measure(args.num_images))
        return
    print(
        "| images | list, s | digest + plan, s | write, s | µs/image | plan, B/image | peak, GiB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for num_images in (84_484, 1_000_000, 10_000_000):
        subprocess.run([sys.executable, __file__, "--num_images", str(num_images)], check=True)


if __name__ == "__main__":
    main()
