"""Settings and data that all tests share."""

import fcntl
import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from builds import build_here
from dataset_factory import write_dataset
from hypothesis import HealthCheck, settings
from image_files import scan_tree, write_tree

# TensorFlow's notes on the processor and on missing GPUs say nothing about a test.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

# The tests start Python a hundred times; bytecode that is kept spares each start the compilation.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What a script starts in the background ignores Ctrl-C, and so would the commands that the tests
# interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests try the same examples every time; `make search` tries new ones, and many more.
settings.register_profile(
    "tests",
    derandomize=True,
    # A deadline for each example would measure the machine, not the code.
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile(
    "search", settings.get_profile("tests"), derandomize=False, max_examples=1000, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tests"))

# No test cuts the power, and to wait for the disk takes a fifth of a tiny build. Tests that look at
# syncs take the place of this function, too.
os.fsync = lambda descriptor: None

# The tests write hundreds of megabytes, which is quicker in memory.
_MEMORY = Path("/dev/shm")
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# Importing TensorFlow, Beam and the tests makes a million objects that all stay. To search them for
# garbage again and again took almost half of the time of the import.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files first that take longest, so that the processes end at nearly the same time."""
    first = ("docs", "train", "reading")
    items.sort(key=lambda item: [folder not in item.path.parts for folder in first])


def pytest_collection_finish() -> None:
    """Leaves what was imported out of all later searches for garbage."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def source_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny scans: three splits, two classes, one file that is no image."""
    files = scan_tree({"train": 8, "val": 2, "test": 3}, classes=("CNV", "NORMAL"))
    files["train/CNV/CNV-1-1.jpeg"] = b"no image at all"
    return write_tree(tmp_path_factory.mktemp("source") / "scans", files)


@pytest.fixture(scope="session")
def built_dataset(source_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset that the real job makes of `source_tree`; not to be written to."""
    flags = ("--image_size=12x10", "--num_shards=3", "--max_reject_fraction=0.5")
    return build_here(source_tree, tmp_path_factory.mktemp("built") / "dataset", *flags)


@pytest.fixture
def dataset(built_dataset: Path, tmp_path: Path) -> Path:
    """A copy of `built_dataset`, to damage."""
    return shutil.copytree(built_dataset, tmp_path / "dataset")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file with a secret for `--anonymize`, in a folder of its own."""
    (folder := tmp_path / "private").mkdir()
    (file := folder / "secret.txt").write_text("8f1d3c5a7b9e2046" * 4)
    return file


@pytest.fixture(scope="session")
def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random pixels: 23 examples of train in four shards, two of them one short; 8 of val."""
    path = tmp_path_factory.mktemp("small")
    write_dataset(path, num_examples={"train": 25, "val": 10}, num_shards=4, num_left_out=2)
    return path


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Any]:
    """One server for all tests: it takes a second to start."""
    from s3_server import running_s3

    with running_s3() as server:
        yield server


@pytest.fixture
def s3(s3_server: Any) -> Iterator[Any]:
    """An S3 server with an empty bucket that this process reaches."""
    from tfrecord_io.stores import remote

    with mock.patch.dict(os.environ, s3_server.environment):
        remote.open_store.cache_clear()
        s3_server.clear()
        yield s3_server
    remote.open_store.cache_clear()


@pytest.fixture
def gs(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same server as Google Cloud Storage, whose XML API is that of S3 as far as it is used.

    The emulators of Google's storage that can be installed speak its other API (JSON).
    """
    from tfrecord_io.stores import remote

    monkeypatch.setenv("GOOGLE_BASE_URL", s3.endpoint)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "emulator")
    remote.open_store.cache_clear()
    return s3


def made_once(path: Path, make: Callable[[], object]) -> Path:
    """Returns a folder that a function makes, unless another process of these tests has done so."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            make()
    return path


@pytest.fixture(scope="session")
def class_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of four classes in three splits, which a network can learn; not to be written to."""
    from marked_images import write_marked_dataset

    own = tmp_path_factory.getbasetemp()  # below a folder of all processes, if there are several
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "classes"
    folder.mkdir(exist_ok=True)
    path, num_examples = folder / "data", {"train": 90, "val": 20, "test": 30}
    return made_once(path, lambda: write_marked_dataset(path, num_examples))


@pytest.fixture(scope="session")
def class_run(class_data: Path) -> Path:
    """A finished run on `class_data`; not to be written to."""
    from marked_images import CLASS_RUN, flags

    from train import run

    def train() -> None:
        assert run.main([f"--data={class_data}", f"--workdir={workdir}", *flags(**CLASS_RUN)]) == 0

    workdir = class_data.parent / "run"
    return made_once(workdir, train)
