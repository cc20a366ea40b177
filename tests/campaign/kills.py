"""Builds that are killed, run out of disk, lose power, meet a failing store, or run twice."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import random
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import azure_server
import builds
import image_files
import s3_server

from campaign import downloads
from campaign.faults import FAULTS, can_mount, cut, kill, run_on, small_disk
from campaign.processes import Job, Outcome, Way, at_once, disturbed, home

_STATUSES = (
    "500 Internal Server Error",
    "503 Slow Down",
    "403 Forbidden",
    "412 Precondition Failed",
)
#: What a build does besides: nothing, taking duplicates out again, or drawing variants.
_JOBS = (
    ("folder", ()),
    ("zip", ()),
    ("tar.gz", ()),
    ("zip", ("--duplicates=drop",)),
    ("folder", ("--image_size=64", "--leaks=drop", "--duplicates=drop")),
    ("zip", ("--variants=1", "--splits=patient", "--split_fractions=train=0.6,test=0.4")),
)
_ALL = tuple(range(len(_JOBS)))
#: Those that take records out of finished shards.
DROPS = (3, 4)


def try_case(
    rng: random.Random, folder: Path, numbers: tuple[int, ...] = _ALL, only: Way | None = None
) -> Outcome:
    """Disturbs one of some builds onto a local disk, in any or in one way."""
    number, ways = rng.choice(numbers), [only] if only else [kill, kill, kill, *FAULTS]
    with contextlib.ExitStack() as stack:
        output, before_last = folder / "output", int
        if not only and can_mount() and rng.random() < 0.3:
            disk = stack.enter_context(small_disk(folder / "disk", rng.randrange(20, 400) << 10))
            output, ways = disk / "output", [run_on]
            grow = ["mount", "-o", "remount,size=64m", str(disk)]
            before_last = functools.partial(subprocess.run, grow, check=True)
        # Mostly in one process, which is quick; now and then with workers as by default.
        has_workers = rng.random() < 0.15 and not only
        job = _job(
            number, folder, output, "--direct_num_workers=2" if has_workers else builds.IN_MEMORY
        )
        # Only the syncs of one process are watched.
        ways = [way for way in ways if way is not cut or not has_workers]
        return disturbed(rng, job, ways, before_last)


def try_store_case(rng: random.Random, folder: Path, only_kills: bool = False) -> Outcome:
    """Builds onto a store and is killed, or the store fails for a while."""
    kind = rng.choice(("s3", "gs", "az"))
    store, job = _store(kind), _on_store(rng.choice(_ALL), folder, kind)
    fault = "kill" if only_kills else rng.choice((*_STATUSES, "half", "half", "kill"))
    num_failing = rng.choice((1, 1, 2, 3, 10**6))

    def failing_store(rng: random.Random, job: Job) -> tuple[int, str]:
        with store.failing(
            status=fault, requests_before=rng.randrange(60), failing_requests=num_failing
        ):
            run = job.start()
            # Of a store that fails for good, half a minute is enough to see.
            run.process.join(30)
            if run.process.is_alive():
                run.process.kill()
            return run.wait()

    outcome, problems, what = disturbed(rng, job, [kill if fault == "kill" else failing_store])
    return f"{kind} {fault[:4]}: {outcome.partition(': ')[2]}", problems, what


def try_two(rng: random.Random, folder: Path) -> Outcome:
    """Runs two builds at once, in one folder or store, or of one drawing or download."""
    where = rng.choice(("folder", "folder", "store", "drawing", "download"))
    if where == "download":
        outcome, problems, what = downloads.try_two(rng, folder)
    elif where == "drawing":
        wanted, seconds = _drawing(folder / "alone", "a").measured()
        jobs = [
            dataclasses.replace(_drawing(folder, name), wanted=wanted, seconds=seconds)
            for name in ("a", "b")
        ]
        outcome, problems, what = at_once(rng, *jobs)
    elif where == "folder":
        job = _job(rng.choice(_ALL), folder, folder / "output", builds.IN_MEMORY)
        outcome, problems, what = at_once(rng, job)
    else:
        outcome, problems, what = at_once(rng, _on_store(rng.choice(_ALL), folder, "s3"))
        if "[0, 0]" not in outcome:
            problems.append(f"on a store none is refused, but here: {outcome}")
    return f"{where}, {outcome}", problems, what


@functools.cache
def source(kind: str) -> Path:
    """Returns scans with two duplicates and a damaged file, as a folder or an archive."""
    names = [
        f"{split}/{label}/{label}-{patient}{len(label)}-{number}.jpeg"
        for split, patients in (("train", range(4)), ("val", range(4, 6)), ("test", range(6, 8)))
        for label in ("CNV", "NORMAL")
        for patient in patients
        for number in range(2)
    ]
    files = {name: image_files.jpeg(seed) for seed, name in enumerate(names)}
    files[names[3]] = files[names[7]]  # a duplicate in one split
    files[names[-1]] = files[names[8]]  # and one in two
    files["train/CNV/CNV-9-1.jpeg"] = b"no image"
    write = {"zip": image_files.write_zip, "tar.gz": image_files.write_tar}
    return write.get(kind, image_files.write_tree)(home() / f"scans.{kind}", files)


def words_of(number: int, output: Path | str, *more: str) -> list[str]:
    """Returns the arguments of a build."""
    kind, flags = _JOBS[number]
    shared = ("--num_shards=5", "--max_reject_fraction=0.5")
    return builds.arguments(source(kind), output, *shared, *flags, *more)


@functools.cache
def undisturbed(number: int) -> tuple[Path, Mapping[str, bytes], float]:
    """Returns the output of a build, all files that it leaves there, and how long it takes."""
    output = home() / str(number)
    found = functools.partial(builds.files_of, output)
    words = words_of(number, output, builds.IN_MEMORY)
    return output, *Job(words=words, folder=output, found=found).measured()


def _job(number: int, folder: Path, output: Path, *more: str) -> Job:
    _, wanted, seconds = undisturbed(number)
    found = functools.partial(builds.files_of, output)
    words = words_of(number, output, *more)
    return Job(words=words, folder=folder, wanted=wanted, found=found, seconds=seconds)


def _on_store(number: int, folder: Path, kind: str) -> Job:
    store, job = _store(kind), _job(number, folder, folder / "output")
    scratch = f"--download_dir={folder / 'scratch'}"
    root = f"{store.root}/{folder.name}"
    return dataclasses.replace(
        job,
        words=words_of(number, root, *store.flags, builds.IN_MEMORY, scratch),
        found=functools.partial(store.read, f"{folder.name}/"),
        seconds=2 * job.seconds,
        variables=dict(os.environ),
    )


def _drawing(folder: Path, output: str) -> Job:
    """Returns a build that draws its source, and what it leaves."""
    words = ["--source=synthetic", "--num_examples=12", "--image_size=8", builds.IN_MEMORY]
    words += [f"--download_dir={folder / 'drawn'}", f"--output={folder / output}"]
    found = functools.partial(builds.shards_of, folder / output)
    return Job(words=words, folder=folder, found=found)


@dataclasses.dataclass(frozen=True)
class _Store:
    """A running object store.

    Attributes:
        root: URL of its bucket.
        flags: what a build needs to reach it.
        failing: has it fail within a block; see `s3_server.Faults`.
        read: returns its objects below a prefix, by name.
    """

    root: str
    flags: list[str]
    failing: Callable[..., contextlib.AbstractContextManager[None]]
    read: Callable[[str], dict[str, bytes]]


_servers = contextlib.ExitStack()


@functools.cache
def _store(kind: str) -> _Store:
    """Returns a store of a kind, which runs until `close_stores`."""
    if kind == "az":
        azure = _servers.enter_context(azure_server.running_azure())
        return _Store(f"az://{azure_server.CONTAINER}", [], azure.failing, azure.read)
    running = s3_server.running_gcs if kind == "gs" else s3_server.running_s3
    server = _servers.enter_context(running())
    flags = [] if kind == "gs" else server.flags
    return _Store(f"{kind}://{s3_server.BUCKET}", flags, server.failing, server.read)


def close_stores() -> None:
    """Ends the servers, so that this program can end."""
    _servers.close()
