"""Builds that download their archive from a stand-in for Kaggle, disturbed and run again."""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path

import builds
import image_files
import kaggle_stand_in

from campaign.faults import FAULTS, kill
from campaign.processes import Job, Outcome, at_once, disturbed, home

_NAME = f"{kaggle_stand_in.DATASET.partition('/')[2]}.zip"


def try_case(rng: random.Random, folder: Path) -> Outcome:
    """Disturbs a download and the build after it."""
    whole, wanted, seconds = _undisturbed()
    with kaggle_stand_in.StandIn(whole) as server:

        def bad_answers(rng: random.Random, job: Job) -> tuple[int, str]:
            faults = ("cut", "short", "whole", "refused", "expired")
            # The first request is that for the size.
            server.storage_faults += [""] * rng.randrange(3)
            server.storage_faults += rng.choices(faults, k=rng.choice((1, 2)))
            return job.run()

        def other_version(rng: random.Random, job: Job) -> tuple[int, str]:
            """A download of another version, killed before its end."""
            server.file.content, server.file.e_tag = _archive(seed=1), '"other-version"'
            server.storage_faults += ["", "silent"]
            run = job.start()
            # If the archive is complete already, nothing is asked for.
            builds.wait_until(lambda: not server.storage_faults or run.process.exitcode is not None)
            time.sleep(rng.random())
            run.process.kill()
            outcome = run.wait()
            server.storage_faults.clear()
            server.file.content, server.file.e_tag = whole, '"1"'
            return outcome

        job = dataclasses.replace(_job(server, folder), wanted=wanted, seconds=seconds)
        ways = [kill, kill, *FAULTS, bad_answers, bad_answers, other_version]
        return disturbed(rng, job, ways, server.storage_faults.clear)


def try_two(rng: random.Random, folder: Path) -> Outcome:
    """Runs two builds at once that download one archive into one folder."""
    whole, wanted, seconds = _undisturbed()
    with kaggle_stand_in.StandIn(whole) as server:
        # A cut costs the first download some time, in which the other begins.
        server.storage_faults += ["", "cut"]
        jobs = [
            dataclasses.replace(_job(server, folder, name), wanted=wanted, seconds=seconds)
            for name in ("a", "b")
        ]
        return at_once(rng, *jobs, refusal="another process")


def _job(server: kaggle_stand_in.StandIn, folder: Path, output: str = "output") -> Job:
    variables = {"KAGGLE_API_TOKEN": kaggle_stand_in.TOKEN, "PATH": os.environ["PATH"]}
    return Job(
        words=[
            "--source=kaggle",
            f"--kaggle_dataset={kaggle_stand_in.DATASET}",
            f"--download_dir={folder / 'downloads'}",
            f"--output={folder / output}",
            "--image_size=8",
            "--num_shards=3",
            builds.IN_MEMORY,
        ],
        folder=folder,
        found=functools.partial(_files, folder, output),
        variables=server.environment(folder, **variables),
        # A part whose bytes the disk has lost is found by the check, and moved aside.
        advice="Run the same command again to download a new one",
    )


def _files(folder: Path, output: str = "output") -> dict[str, bytes]:
    """Returns the dataset's files and the archive."""
    archive = folder / "downloads" / _NAME
    found = {_NAME: archive.read_bytes()} if archive.exists() else {}
    return found | builds.files_of(folder / output)


@functools.cache
def _archive(seed: int = 0) -> bytes:
    files = {
        f"{split}/{label}/{label}-{number}-1.jpeg": image_files.jpeg(100 * seed + number)
        for split, numbers in (("train", range(8)), ("test", range(8, 12)))
        for label in ("CNV", "DME")
        for number in numbers
    }
    # So that the download is of many parts.
    files["notes.bin"] = random.Random(seed).randbytes(3 << 20)
    path = home() / f"archive-{seed}.zip"
    return image_files.write_zip(path, files).read_bytes()


@functools.cache
def _undisturbed() -> tuple[bytes, Mapping[str, bytes], float]:
    """Returns the archive, all that an undisturbed build of it leaves, and how long it takes."""
    folder = home() / "download"
    folder.mkdir()
    with kaggle_stand_in.StandIn(_archive()) as server:
        return _archive(), *_job(server, folder).measured()
