"""Who may write to the folder of a run, and its config.json."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import keras

from tfrecord_io.format.manifest import Manifest
from tfrecord_io.stores import file_lock, replace
from tfrecord_io.stores.files import sync_folder, write_json
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.errors import UserError
from train.machine import console
from train.machine.devices import Devices, versions
from train.machine.places import OWN_FILES, RunFolder
from train.training import config as train_config
from train.training.checkpoint import CHECKPOINT_NAME
from train.training.config import TrainConfig


@contextlib.contextmanager
def claim(
    folder: RunFolder,
    config: TrainConfig,
    manifest: Manifest,
    devices: Devices,
    *,
    overwrite: bool = False,
) -> Iterator[None]:
    """Locks the folder of a run, made if it is missing, and writes its config.json.

    What another configuration left is replaced if it never came to a checkpoint, or with
    `overwrite`; then it comes back if the block ends before a checkpoint.

    Raises:
        UserError: if the folder cannot be written, belongs to a run of another configuration, is
            not a run folder, or another process trains in it.
    """
    workdir, address = folder.path, folder.address
    content = {
        "config": config.to_dict(),
        "dataset": {"name": manifest.name, "fingerprint": manifest.fingerprint},
        "backend": keras.backend.backend(),
        "num_replicas": devices.num_replicas,
        "versions": versions(),
    }
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(file_lock.held(workdir / ".lock", f"training in {address}"))
        except OSError as error:
            raise UserError(f"--workdir {address} cannot be written to: {error}") from error
        # A killed process leaves temporary files; the lock ensures that no other process writes.
        for leftover in workdir.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        settle = functools.partial(replace.settle, Folder(workdir), OWN_FILES)
        settle()
        path = workdir / train_config.FILE_NAME
        if is_run := path.exists():
            found = train_config.load(path)
            changed = train_config.differences(content, found)
            if overwrite:
                stack.enter_context(console.cleaned_up(settle))
                replace.set_aside(Folder(workdir), OWN_FILES)
            elif changed and any(workdir.rglob(CHECKPOINT_NAME)):
                raise UserError(
                    f"{address} contains a run with another configuration:\n  "
                    + "\n  ".join(changed)
                    + f"\nTrain on from that run with --init {address} and another --workdir, or "
                    "replace it with --overwrite"
                )
        elif any(entry.name != ".lock" for entry in workdir.iterdir()):
            raise UserError(
                f"{address} is not empty and has no {path.name}: it is not a run folder. Use "
                "another --workdir"
            )
        write_json(path, content)
        # A folder with a checkpoint, but without this file, would be refused after a power cut.
        sync_folder(workdir)
        if not (is_run and overwrite):
            folder.save()
        yield
