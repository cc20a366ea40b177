"""Datasets and models of strangers, altered: a message, no traceback, and nothing but the output.

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
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import image_files

from campaign import damage, kills, trainings
from campaign.case import Case
from campaign.processes import Run, undisturbed

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


def try_dataset(case: Case) -> str:
    """Alters a file of a dataset and uses the dataset."""
    data, output = case.folder / "data", case.folder / "output"
    shutil.copytree(undisturbed(kills.build_job, 5).folder / "output", data)
    output.mkdir()
    path = data / "manifest.json"
    if case.happens(0.3):
        path = case.pick(*sorted(path for path in data.iterdir() if path.is_file()))
    done = _alter(case, path)
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


def _alter(case: Case, path: Path, values: Sequence[Any] = damage.VALUES) -> str:
    if path.suffix == ".json":
        return damage.alter_json(case.rng, path, values)
    return damage.damage_file(case.rng, path)


def _use(command: str, data: Path) -> int:
    from pipelines import build_tfrecords
    from tfrecord_io import ManifestError, __main__, make_batches

    if command == "build":
        return build_tfrecords.main(kills.words_of(5, data, kills.IN_MEMORY))
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


def try_model(case: Case) -> str:
    """Alters a file of a model and predicts with it."""
    run, log = case.folder / "run", case.folder / "seen.txt"
    shutil.copytree(undisturbed(trainings.training_job).folder / "run", run)
    name = "model.keras" if case.happens(0.6) else "preprocessing.json"
    alter = _alter_model if name == "model.keras" else _alter
    case.what = f"{name}: {alter(case, run / 'export' / name)}"
    picture = image_files.write_tree(case.folder, {"picture.png": image_files.png()})
    words = [f"--model={run}", f"--input={picture / 'picture.png'}", "--format=json"]
    fault = functools.partial(_watched_into, str(log), str(case.folder / "output"))
    code, text = Run(words, fault, command="train.predict").wait()
    case.require_message(text, code)
    case.require(code in (0, 1, 2), f"exit code {code}: {text[-1500:]}")
    case.problems += sorted(set(log.read_text().splitlines())) if log.exists() else []
    return f"exit code {code}"


def _alter_model(case: Case, path: Path) -> str:
    """Alters the archive of a Keras model, or one of its members; returns what was done."""
    if case.happens(0.2):
        return damage.damage_file(case.rng, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = case.pick("config.json", "config.json", "config.json", *members)
    inner = image_files.write_tree(case.folder, {name: members[name]}) / name
    done = _alter(case, inner, case.pick(damage.VALUES, _CLASSES))
    members[name] = inner.read_bytes()
    if case.happens(0.1):
        members["../../outside.txt"] = b"outside"
    image_files.write_zip(path, members)
    return f"{name}: {done}"


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
