"""The folder of a run: its lock, its config.json, and how its files reach the disk.

Each file is written by the module that knows its content: checkpoints by `checkpoint`, tables,
plots and pages by `report`, the model by `export`, logs by `callbacks` and `tracing`.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfrecord_io.files import sync_folder, write_json
from train import config as train_config
from train.errors import ConfigError
from train.run_setup import Run

CHECKPOINT_NAME = "checkpoint.npz"
BEST_NAME = "best.npz"
HISTORY_NAME = "history.json"
METRICS_NAME = "metrics.json"


def write_metrics(workdir: Path, metrics: Any) -> None:
    """Writes metrics.json, whose presence means that a run is complete.

    All other files of the folder are on the disk before it, with their names: a power cut may leave
    an unfinished run, which can go on, but not a complete one without its export.
    """
    folders = [workdir]
    for path in workdir.rglob("*"):
        if path.is_dir():
            folders.append(path)
        elif path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    for folder in folders:
        sync_folder(folder)
    write_json(workdir / METRICS_NAME, metrics)


def read_metrics(workdir: Path) -> dict[str, Any]:
    """Returns the content of a run's metrics.json; empty if the run is not complete.

    Raises:
        ConfigError: if it is damaged.
    """
    path = workdir / METRICS_NAME
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ConfigError(
            f"{path} is damaged ({error}); copy the run again, or remove the file, and the command "
            "that trained the run evaluates it again"
        ) from None


@contextlib.contextmanager
def claim(run: Run) -> Iterator[None]:
    """Locks the folder of a run, made if it is missing, and writes its config.json.

    Only the chief does so.

    Raises:
        ConfigError: if the folder cannot be written, belongs to a run of another configuration, is
            not a run folder, or another process trains in it.
    """
    workdir, manifest = run.folder, run.data.manifest
    if not run.devices.is_chief:
        yield
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock = (workdir / ".lock").open("w")
    except OSError as error:
        raise ConfigError(f"--workdir {workdir} cannot be written to: {error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"another process trains in {workdir}; wait until it ends, or use another --workdir"
            ) from None
        # A killed process leaves temporary files; the lock ensures that no other process writes.
        for leftover in workdir.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        path = workdir / train_config.FILE_NAME
        content = {
            "config": run.config.to_dict(),
            "dataset": {"name": manifest.name, "fingerprint": manifest.fingerprint},
            "backend": keras.backend.backend(),
            "num_replicas": run.devices.num_replicas,
            "versions": versions(),
        }
        if path.exists():
            ours, theirs = (
                each["config"]
                | {"dataset": each.get("dataset", {}).get("fingerprint")}
                | {"backend": each.get("backend")}
                for each in (content, train_config.load(path))
            )
            if changed := train_config.differences(ours, theirs):
                raise ConfigError(
                    f"{workdir} contains a run with another configuration:\n  "
                    + "\n  ".join(changed)
                    + "\nUse another --workdir, or remove that folder"
                )
        elif any(entry.name != ".lock" for entry in workdir.iterdir()):
            raise ConfigError(
                f"{workdir} is not empty and has no {train_config.FILE_NAME}: it is not a run "
                "folder. Use another --workdir"
            )
        write_json(path, content)
        # A folder with a checkpoint, but without this file, would be refused after a power cut.
        sync_folder(workdir)
        yield


def versions() -> dict[str, str]:
    """Returns the versions of Python, Keras, the backend and NumPy, by name."""
    backend = keras.backend.backend()
    return {
        "python": sys.version.split()[0],
        "keras": keras.__version__,
        backend: importlib.metadata.version(backend),
        "numpy": np.__version__,
    }
