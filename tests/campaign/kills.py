"""Builds that are killed, run out of disk, lose power, or meet a failing store."""

import contextlib
import dataclasses
import functools
import os
import random
from pathlib import Path

import azure_server
import builds
import image_files
import s3_server

from campaign.case import Case
from campaign.faults import FAULTS, cut, failing_read, kill
from campaign.processes import Ending, Job, Run, disturbed, home, undisturbed

_STATUSES = (
    "500 Internal Server Error",
    "503 Slow Down",
    "403 Forbidden",
    "412 Precondition Failed",
)
#: What a build does besides: nothing, taking duplicates out again, drawing variants, or copying.
_JOBS = (
    ("folder", ()),
    ("zip", ()),
    ("tar.gz", ()),
    ("zip", ("--duplicates=drop",)),
    ("folder", ("--image_size=64", "--leaks=drop", "--duplicates=drop")),
    ("zip", ("--variants=1", "--splits=patient", "--split_fractions=train=0.6,test=0.4")),
    ("zip", ("--reuse",)),
)
#: Their numbers.
ALL = tuple(range(len(_JOBS)))

#: The servers that run until the end of the campaign.
servers = contextlib.ExitStack()


def try_build(case: Case) -> str:
    """Disturbs one of the builds onto a local disk."""
    number, ways = case.pick(*ALL), [kill, kill, kill, *FAULTS, *[failing_read] * 2]
    # Mostly in one process, which is quick; now and then with workers as by default.
    has_workers = case.happens(0.15)
    job = build_job(case.folder, number, "--direct_num_workers=2" if has_workers else IN_MEMORY)
    # Only the syncs of one process are watched.
    ways = [way for way in ways if way is not cut or not has_workers]
    return disturbed(case, job.like(undisturbed(build_job, number)), ways)


def try_store(case: Case) -> str:
    """Builds onto a store and is killed, or the store fails for a while."""
    kind = case.pick("s3", "gs", "az")
    job = store_job(case, kind)
    fault = case.pick(*_STATUSES, "half", "half", "kill", "kill")
    num_failing = case.pick(1, 1, 2, 3, None)

    def failing_store(rng: random.Random, job: Job) -> Ending:
        with _store(kind).failing(fault, after=rng.randrange(60), times=num_failing):
            run = job.start()
            # Of a store that fails for good, half a minute is enough to see.
            run.process.join(30)
            if run.process.is_alive():
                run.process.kill()
            return run.wait()

    outcome = disturbed(case, job, [kill if fault == "kill" else failing_store])
    return f"{kind} {fault[:4]}: {outcome.partition(': ')[2]}"


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
    return image_files.pack(home() / f"scans.{kind}", files)


IN_MEMORY = builds.IN_MEMORY
_SHARED = ("--num_shards=5", "--max_reject_fraction=0.5")


def words_of(number: int, output: Path | str, *more: str) -> list[str]:
    """Returns the arguments of a build."""
    kind, flags = _JOBS[number]
    flags = [f"{flag}={old()}" if flag == "--reuse" else flag for flag in flags]
    return builds.arguments(source(kind), output, *_SHARED, *flags, *more)


@functools.cache
def old() -> Path:
    """Returns a dataset of most of the scans."""
    output = home() / "old"
    flags = (*_SHARED, "--exclude_regex=-2\\d-", IN_MEMORY)
    code, text = Run(builds.arguments(source("zip"), output, *flags)).wait()
    if code:
        raise RuntimeError(text)
    return output


def build_job(folder: Path, number: int, how: str = IN_MEMORY) -> Job:
    """Returns one of the builds, into `output` in a folder."""
    output = folder / "output"
    found = functools.partial(builds.files_of, output)
    return Job(words=words_of(number, output, how), folder=folder, found=found)


def store_job(case: Case, kind: str) -> Job:
    """Returns one of the builds, onto a store."""
    number, store = case.pick(*ALL), _store(kind)
    job = undisturbed(build_job, number)
    flags = store.flags if kind == "s3" else ()
    scratch = f"--download_dir={case.folder / 'scratch'}"
    root = f"{kind}://{s3_server.BUCKET}/{case.folder.name}"
    return dataclasses.replace(
        job,
        words=words_of(number, root, *flags, IN_MEMORY, scratch),
        folder=case.folder,
        found=functools.partial(store.read, f"{case.folder.name}/"),
        seconds=2 * job.seconds,
        variables=dict(os.environ),
    )


@functools.cache
def _store(kind: str) -> azure_server.AzureServer | s3_server.S3Server:
    running = {"s3": s3_server.running_s3, "gs": s3_server.running_gcs}
    return servers.enter_context(running.get(kind, azure_server.running_azure)())
