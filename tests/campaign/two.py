"""Two jobs at once, on one folder or on one prefix of an object store."""

from __future__ import annotations

import random
import time
from pathlib import Path

import builds

from campaign import downloads, kills


def try_case(rng: random.Random, folder: Path) -> tuple[str, list[str], str]:
    """Starts a job twice, one somewhat after the other; see `archives.try_case`."""
    where = rng.choice(("folder", "folder", "store", "drawing", "download"))
    if where == "drawing":
        return _two_drawings(rng, folder)
    if where == "download":
        return downloads.try_two(rng, folder)
    number = rng.randrange(kills.NUM_JOBS)
    source, flags, wanted, seconds = kills.undisturbed(number)
    output: Path | str = folder / "output"
    more = [builds.IN_MEMORY, "--num_shards=5", *flags]
    if where == "store":
        output = f"{kills.store().root}/{folder.name}"
        more += kills.store().flags
    runs, delay = [], rng.random() * seconds
    for name in ("a", "b"):
        scratch = f"--download_dir={folder / name}"
        runs.append(kills.Run(builds.arguments(source, output, *more, scratch)))
        time.sleep(delay if name == "a" else 0)
    ended = [run.wait() for run in runs]
    problems = [line for code, text in ended for line in kills.complaints(code, text)]
    if where == "store":
        found = kills.store().read(f"{folder.name}/")
    else:
        found = builds.files_of(Path(output))
    codes = sorted(code for code, _ in ended)
    if codes != [0, 0] and (where == "store" or codes != [0, 2]):
        problems.append(f"they end with {codes}: {' '.join(text for _, text in ended)}")
    problems += kills.differences(found, wanted)
    return f"{where}: {codes}", problems, f"{source.name} {' '.join(flags)}, {delay:.2f} s apart"


def _two_drawings(rng: random.Random, folder: Path) -> tuple[str, list[str], str]:
    """Two builds that draw their source into one folder."""
    runs = []
    for name in ("a", "b"):
        words = ["--source=synthetic", "--num_examples=12", "--image_size=8", builds.IN_MEMORY]
        words += [f"--download_dir={folder / 'drawn'}", f"--output={folder / name}"]
        runs.append((words, kills.Run(words)))
        time.sleep(rng.random() if name == "a" else 0)
    ended = [run.wait() for _, run in runs]
    problems = [line for code, text in ended for line in kills.complaints(code, text)]
    for (words, _), (code, _) in zip(runs, ended, strict=True):
        if code:
            problems += [f"again: {text}" for code, text in [kills.Run(words).wait()] if code]
    shards = [builds.shards_of(folder / name) for name in ("a", "b")]
    if not shards[0] or shards[0] != shards[1]:
        problems.append("the two datasets differ")
    return f"drawing: {sorted(code for code, _ in ended)}", problems, "synthetic"
