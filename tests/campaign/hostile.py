"""Datasets and models of strangers, altered: a message, no traceback, and nothing but the output.

Every file that a command opens for writing, and every program that it starts, is seen by an audit
hook of Python (PEP 578).
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import shutil
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import builds
import image_files

from campaign import archives, kills, mutations, trainings
from campaign.processes import Outcome, Run, complaints, home

#: What a hostile model says that its layers are.
_CLASSES = (
    {"module": "os", "class_name": "system", "config": "touch /tmp/campaign-outside"},
    {"module": "subprocess", "class_name": "Popen", "config": {"args": ["touch", "/tmp/x"]}},
    {"module": "builtins", "class_name": "eval", "config": {"source": "1/0"}},
    {"class_name": "Lambda", "module": "keras.layers", "config": {"function": "gANjb3MKc3lzdGVt"}},
    {"class_name": "__lambda__", "config": {"value": "4wEAAAA="}},
    {"class_name": "TorchModuleWrapper", "module": "keras.layers", "config": {"module": "gAN9"}},
    {"class_name": "function", "module": "builtins", "config": "print", "registered_name": "print"},
    "os.system", ["keras"], {"class_name": "Dense", "module": "keras.layers", "config": [1]},
    {"class_name": "StringLookup", "module": "keras.layers",
     "config": {"vocabulary": "/etc/passwd"}},
    {"class_name": "Dense", "module": "keras.layers", "config": {"units": 10**13}},
)  # fmt: skip
_PROGRAMS = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.link")

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


def try_dataset_case(rng: random.Random, folder: Path) -> Outcome:
    """Alters a file of a dataset and uses the dataset."""
    data, output = folder / "data", folder / "output"
    shutil.copytree(kills.undisturbed(5)[0], data)
    output.mkdir()
    path = _any_file(rng, data)
    alter = mutations.alter_json if path.suffix == ".json" else mutations.damage_file
    done = alter(rng, path)
    command = rng.choice(("verify", "audit", "show", "index", "read", "build"))
    what = f"{path.name}: {done}; {command}"
    said, seen = io.StringIO(), list[str]()
    # Beam and `index` write beside the data, the build into it.
    own = (str(data), f"{tempfile.gettempdir()}/beam-") if command in ("build", "index") else ()
    try:
        with (
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
            watched(seen.append, str(output), *own),
        ):
            code = _use(command, data, output)
    except Exception:
        return "traceback", [traceback.format_exc()], what
    # `verify` and `audit` end with 1 for what they find.
    text = said.getvalue() if command in ("show", "index", "build") else f"error: {said.getvalue()}"
    problems = [*seen, *complaints(code, text)]
    return f"{command}: {code}", problems, what


def _use(command: str, data: Path, output: Path) -> int:
    from pipelines import build_tfrecords
    from tfrecord_io import ManifestError, __main__, make_batches

    if command == "build":
        return build_tfrecords.main(kills.words_of(5, data, builds.IN_MEMORY))
    if command == "read":
        try:
            for split in ("train", "test"):
                batches = make_batches(data, split=split, batch_size=4)
                for _ in zip(range(len(batches)), batches, strict=False):
                    pass
        except (ManifestError, ValueError, OSError) as error:
            if problems := archives.about(str(error)):
                raise RuntimeError(problems[0]) from error
        return 0
    more = ["--output", str(output / "grid.png")] if command == "show" else []
    return __main__.main([command, str(data), *more])


def _any_file(rng: random.Random, data: Path) -> Path:
    if rng.random() < 0.7:
        return data / "manifest.json"
    return rng.choice(sorted(path for path in data.iterdir() if path.is_file()))


def try_model_case(rng: random.Random, folder: Path) -> Outcome:
    """Alters a file of a model and predicts with it."""
    run, picture = folder / "run", _picture()
    shutil.copytree(trainings.undisturbed()[0], run)
    if rng.random() < 0.6:
        done = _alter_model(rng, run / "export" / "model.keras")
    else:
        path = run / "export" / "preprocessing.json"
        done = f"{path.name}: {mutations.alter_json(rng, path)}"
    log = folder / "seen.txt"
    words = [f"--model={run}", f"--input={picture}", "--format=json"]
    fault = functools.partial(_watched_into, str(log), str(folder / "output"))
    code, text = Run(words, fault, command="train.predict").wait()
    problems = complaints(code, text)
    if code not in (0, 1, 2):
        problems.append(f"exit code {code}: {text[-1500:]}")
    if log.exists():
        problems += sorted(set(log.read_text().splitlines()))
    return f"exit code {code}", problems, done


@contextlib.contextmanager
def _watched_into(log: str, allowed: str) -> Iterator[None]:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    # Keras unpacks weights into a temporary folder; a process asks its processor with `lscpu`.
    with watched(
        lambda event: os.write(descriptor, f"{event}\n".encode()) and None, allowed, "/tmp/tmp"
    ):
        yield
    if not os.fstat(descriptor).st_size:
        Path(log).unlink()


@functools.cache
def _picture() -> Path:
    path = home() / "picture.png"
    path.write_bytes(image_files.png())
    return path


def _alter_model(rng: random.Random, path: Path) -> str:
    """Alters the archive of a Keras model, or one of its members; returns what was done."""
    if rng.random() < 0.2:
        return f"{path.name}: {mutations.damage_file(rng, path)}"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(("config.json", "config.json", "config.json", *members))
    inner = path.with_suffix(".member")
    inner.write_bytes(members[name])
    if name == "config.json":
        done = mutations.alter_json(rng, inner, rng.choice((mutations.VALUES, _CLASSES)))
    else:
        done = mutations.damage_file(rng, inner)
    members[name] = inner.read_bytes()
    inner.unlink()
    if rng.random() < 0.1:
        members["../../outside.txt"] = b"outside"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return f"{name} in {path.name}: {done}"
