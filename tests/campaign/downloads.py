"""Builds that download their archive from a stand-in for Kaggle, disturbed and run again."""

from __future__ import annotations

import functools
import os
import random
import time
from pathlib import Path

import builds
import image_files
import kaggle_stand_in
from kaggle_stand_in import Cut, Page, Refuse, Stall, WrongRange

from campaign import kills

_NAME = f"{kaggle_stand_in.DATASET.partition('/')[2]}.zip"


def try_case(rng: random.Random, folder: Path) -> tuple[str, list[str], str]:
    """Disturbs a download and the build after it; see `kills.disturbed`."""
    whole, wanted, seconds = _undisturbed()
    with kaggle_stand_in.StandIn(whole) as server:

        def bad_answers(rng: random.Random, job: kills.Job) -> tuple[int, str]:
            for _ in range(rng.choice((1, 2))):
                server.storage_faults.append(
                    rng.choice(
                        (
                            Cut(after=rng.randrange(len(whole))),
                            Page(),
                            WrongRange(),
                            *(Refuse(status) for status in (403, 404, 412, 500, 503)),
                        )
                    )
                )
            return job.start().wait()

        def other_version(rng: random.Random, job: kills.Job) -> tuple[int, str]:
            """A download of another version, killed before its end."""
            server.archive, server.etag = _archive(seed=1), '"other-version"'
            server.storage_faults += [Stall(after=rng.randrange(len(server.archive) // 2))]
            run = job.start()
            # If the archive is complete already, nothing is asked for.
            builds.wait_until(lambda: not server.storage_faults or run.process.exitcode is not None)
            time.sleep(rng.random())
            run.process.kill()
            outcome = run.wait()
            server.storage_faults.clear()
            server.archive, server.etag = whole, '"first-version"'
            return outcome

        words = _words(folder)
        job = kills.Job(
            words=words,
            folder=folder,
            wanted=wanted,
            found=functools.partial(_files, folder),
            seconds=seconds,
            variables=_variables(server, folder),
            # A part whose bytes the disk has lost is found by the check, and moved aside.
            advice="Run the same command again to download a new one",
        )
        ways = [kills.kill, kills.kill, *kills.FAULTS, bad_answers, bad_answers, other_version]
        return kills.disturbed(rng, job, ways, server.storage_faults.clear)


def try_two(rng: random.Random, folder: Path) -> tuple[str, list[str], str]:
    """Two builds that download one archive into one folder; see `archives.try_case`."""
    whole, wanted, seconds = _undisturbed()
    with kaggle_stand_in.StandIn(whole) as server:
        variables, runs = _variables(server, folder), []
        # A cut costs the first download a second, in which the other begins.
        server.storage_faults += [Cut(after=rng.randrange(len(whole)))]
        delay = rng.random() * seconds
        for name in ("a", "b"):
            words = _words(folder, name)
            runs.append((words, kills.Run(words, None, variables)))
            time.sleep(delay if name == "a" else 0)
        ended = [run.wait() for _, run in runs]
        problems = [line for code, text in ended for line in kills.complaints(code, text)]
        for (words, _), (code, text) in zip(runs, ended, strict=True):
            if code and "another process" not in text:
                problems.append(f"it ends with {code}: {text}")
            if code:
                problems += [t for c, t in [kills.Run(words, None, variables).wait()] if c]
    for name in ("a", "b"):
        problems += kills.differences(_files(folder, name), wanted)
    codes = sorted(code for code, _ in ended)
    return f"download: {codes}", problems, f"{delay:.2f} s apart"


def _words(folder: Path, output: str = "output") -> list[str]:
    return [
        "--source=kaggle",
        f"--kaggle_dataset={kaggle_stand_in.DATASET}",
        f"--download_dir={folder / 'downloads'}",
        f"--output={folder / output}",
        "--image_size=8",
        "--num_shards=3",
        builds.IN_MEMORY,
    ]


def _variables(server: kaggle_stand_in.StandIn, home: Path) -> dict[str, str]:
    variables = {"KAGGLE_API_TOKEN": kaggle_stand_in.TOKEN, "PATH": os.environ["PATH"]}
    return server.environment(home, **variables)


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
    path = kills.home() / f"archive-{seed}.zip"
    return image_files.write_zip(path, files).read_bytes()


@functools.cache
def _undisturbed() -> tuple[bytes, dict[str, bytes], float]:
    """Returns the archive, all that an undisturbed build of it leaves, and how long it takes."""
    folder = kills.home() / "download"
    folder.mkdir()
    with kaggle_stand_in.StandIn(_archive()) as server:
        start = time.monotonic()
        code, text = kills.Run(_words(folder), None, _variables(server, folder)).wait()
        if code:
            raise RuntimeError(text)
        return _archive(), _files(folder), time.monotonic() - start
