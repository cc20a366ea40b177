"""Where the files of a run are."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path

from tfrecord_io.stores import replace
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.address import local_path
from tfrecord_io.terminal.errors import UserError

#: Of a run it is the last file: a run without it, or with a damaged one, is not complete.
METRICS_NAME = "metrics.json"
PAGE_NAME = "report.html"

#: Names of the files in the folder of a run that the trainer writes; nothing else is ever replaced
#: or removed. A cross-validation has the same in RUN/fold-F, and an evaluation on another dataset
#: its results in RUN/evaluation.
OWN_FILES = re.compile(
    r"((fold-\d+|evaluation/[^/]+)/)?(config|history|metrics)\.json"
    r"|((fold-\d+|evaluation/[^/]+)/)?(report\.html|predictions\.(csv|npz)|plots/\w+\.svg)"
    r"|(fold-\d+/)?((checkpoint|best)\.npz|seen\.parquet)"
    r"|(fold-\d+/)?export/(model\.(keras|weights\.h5)"
    r"|(architecture|preprocessing|thresholds)\.json|saved_model/.*)"
    r"|(fold-\d+/)?tensorboard/events\.out\.tfevents\..*"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Where the files of a run are.

    Attributes:
        path: the folder.
        home: that of the whole run, where this is one of a cross-validation.
        address: what the user calls it.
        saved: called after files that belong together were written, with the path, and with
            whether they are the first after those of a run that this one replaces.
    """

    path: Path
    home: Path
    address: str
    saved: Callable[[Path, bool], object] = lambda path, replaces: None

    @classmethod
    def at(cls, workdir: RunFolder | str | os.PathLike[str]) -> RunFolder:
        """Returns a local folder, or what is one already; raises `UserError` for a URL."""
        if isinstance(workdir, RunFolder):
            return workdir
        path = local_path(workdir)
        return cls(path=path, home=path, address=str(path))

    def __truediv__(self, name: str) -> RunFolder:
        """Returns the folder of one of its runs, such as `fold-1`."""
        path, address = self.path / name, f"{self.address}/{name}"
        return dataclasses.replace(self, path=path, address=address)

    def save(self) -> None:
        """Says that files were written, after which a run that this one replaces can go."""
        is_first = replace.forget(Folder(self.home))
        self.saved(self.path, is_first)


def open_local(run: str | os.PathLike[str]) -> Path:
    """Returns the folder of a run, a fold or an export; UserError if it is being replaced."""
    path = local_path(run)
    for folder in (path, *path.absolute().parents[:3]):
        if replace.is_under_way(Folder(folder)):
            raise UserError(
                f"the run in {folder} is being replaced, or that was interrupted. Wait for the "
                "first checkpoint of the new run, or repeat the `train` command of either"
            )
    return path
