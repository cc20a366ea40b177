"""Datasets of strangers, altered: a message, no traceback, and nothing but the output.

Every file that a command opens for writing, and every program that it starts, is seen by an audit
hook of Python (PEP 578).
"""

import contextlib
import functools
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import builds
import image_files

from campaign import damage
from campaign.case import Case

_PROGRAMS = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.link")

_FLAGS = ("--num_shards=5", "--variants=1")

_report: Callable[[str], None] | None = None
_allowed: tuple[str, ...] = ()


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """The audit hook. Python cannot remove one, so it does nothing while `_report` is None."""
    if _report is None:
        return
    if event in _PROGRAMS:
        _report(f"{event} {arguments}"[:300])
    path = arguments[0] if arguments else None
    is_writing = event in _CHANGES or (event == "open" and bool((arguments[2] or 0) & _WRITES))
    if is_writing and isinstance(path, str | bytes | os.PathLike):
        folder = arguments[-1]  # a descriptor, for some events
        base = f"/proc/self/fd/{folder}" if isinstance(folder, int) and folder > 2 else ""
        where = str(Path(base, os.fsdecode(path)).resolve())
        # Without a name, a temporary file is opened by its folder.
        if not where.startswith(_allowed) and where != tempfile.gettempdir():
            _report(f"{event} of {where}")


_hook = functools.cache(lambda: sys.addaudithook(_watch))


@contextlib.contextmanager
def watched(report: Callable[[str], None], *allowed: str) -> Iterator[None]:
    """Calls a function for each program that is started, and each writing outside of folders."""
    global _report, _allowed
    _hook()
    _allowed = (*map(os.path.realpath, allowed), "/dev/", "/proc/")
    _report = report
    try:
        yield
    finally:
        _report = None


@functools.cache
def _built() -> Path:
    """Returns a folder with a source and the dataset of it, which is removed at the end."""
    _built.folder = tempfile.TemporaryDirectory(prefix="campaign-")  # type: ignore[attr-defined]
    folder = Path(_built.folder.name)
    image_files.write_zip(folder / "scans.zip", image_files.scan_tree())
    builds.build_here(folder / "scans.zip", folder / "output", *_FLAGS)
    return folder


def _words(output: Path) -> list[str]:
    return builds.arguments(_built() / "scans.zip", output, builds.IN_MEMORY, *_FLAGS)


def try_dataset(case: Case) -> str:
    """Alters a file of a dataset and uses the dataset."""
    data, output = case.folder / "data", case.folder / "output"
    shutil.copytree(_built() / "output", data)
    output.mkdir()
    path = data / "manifest.json"
    if case.happens(0.3):
        path = case.pick(*sorted(path for path in data.iterdir() if path.is_file()))
    alter = damage.alter_json if path.suffix == ".json" else damage.damage_file
    done = alter(case.rng, path)
    command = case.pick("verify", "audit", "read", "build")
    case.what = f"{path.name}: {done}; {command}"
    said = io.StringIO()
    # Beam writes beside the data, the build into it.
    own = (str(data), f"{tempfile.gettempdir()}/beam-") if command == "build" else ()
    with (
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        watched(case.problems.append, str(output), *own),
    ):
        code = _use(command, data)
    # `verify` and `audit` end with 1 for what they find.
    has_message = command in ("build", "read")
    case.require_message(said.getvalue(), code if has_message else 0)
    return f"{command}: {code}"


def _use(command: str, data: Path) -> int:
    from pipelines import build_tfrecords
    from tfrecord_io import ManifestError, __main__, make_batches

    if command == "build":
        return build_tfrecords.main(_words(data))
    if command == "read":
        try:
            for split in ("train", "test"):
                batches = make_batches(data, split=split, batch_size=4)
                for _ in zip(range(len(batches)), batches, strict=False):
                    pass
        except (ManifestError, ValueError, OSError) as error:
            print(f"error: {error}")
            return 1
        return 0
    return __main__.main([command, str(data)])
