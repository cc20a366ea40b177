"""Batches of a dataset on a store are those of a local copy, whatever the cache holds."""

import collections
import contextlib
import itertools
import os
import pickle
import pwd
import resource
import shutil
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest
from builds import ROOT, wait_until
from dataset_factory import assert_same, write_dataset

import tfrecord_io
from tfrecord_io import Manifest
from tfrecord_io.reading import cache, fetch, mapped
from tfrecord_io.reading.cache import DatasetCache
from tfrecord_io.stores import remote
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.errors import StoreError, UserError

SIZES = {"num_examples": {"train": 121, "val": 16}, "image_shape": (190, 180, 1), "num_shards": 4}


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    directory = tmp_path_factory.mktemp("local")
    write_dataset(directory, **SIZES)
    return directory


@pytest.fixture
def url(s3, local):
    return s3.put_folder(local, "data")


@pytest.fixture
def store(s3, url):
    return s3


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The user's cache in this test, in which this process has not checked a record."""
    mapped._checked.clear()
    cache.warn_once.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tfrecord_io"


DEFAULTS = {"split": "train", "batch_size": 6, "seed": 5, "with_keys": True}


def _numpy(directory, **options):
    return list(tfrecord_io.make_batches(directory, **{**DEFAULTS, **options}))


def _tensorflow(directory, **options):
    dataset = tfrecord_io.make_dataset(directory, **{**DEFAULTS, **options})
    # Of another type than NumPy's keys.
    return [
        tuple(part.astype("S32") if part.dtype == object else part for part in batch)
        for batch in dataset.as_numpy_iterator()
    ]


OPTIONS = {
    "padded": {"epochs": 2, "pad_remainder": True},
    "later": {"epochs": 3, "start_step": 31},
    "share": {"num_replicas": 3, "replica_index": 1, "epochs": 2},
    "chosen": {"split": ("val", "train"), "examples": range(0, 130, 3), "epochs": 2},
}
#: How much the cache may hold, in GB; a quarter of the dataset.
ALL, QUARTER, NONE = None, 0.0011, 0
CASES = [
    *((_numpy, name, QUARTER) for name in OPTIONS),
    (_numpy, "padded", ALL),
    (_numpy, "padded", NONE),
    (_tensorflow, "chosen", QUARTER),
    (_tensorflow, "share", NONE),
]


@pytest.mark.parametrize(
    ("read", "name", "room"), CASES, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_batches_are_those_of_a_local_copy_bit_by_bit(local, url, read, name, room):
    options = OPTIONS[name]
    assert_same(read(url, cache_gb=room, **options), _numpy(local, **options))


def test_what_is_kept_is_never_fetched_again_and_read_like_a_folder(local, store, url):
    store.bytes_sent = 0
    wanted = _numpy(local, epochs=2, pad_remainder=True)
    assert_same(_tensorflow(url, epochs=2, pad_remainder=True), wanted)
    num_bytes = Manifest.load(local).split("train").num_bytes
    assert num_bytes <= store.bytes_sent <= 1.1 * num_bytes
    store.bytes_sent = 0
    assert_same(_numpy(url, epochs=2, pad_remainder=True), wanted)
    assert store.bytes_sent < 20_000  # the manifest
    batches = tfrecord_io.make_batches(url, **DEFAULTS)
    records, rows, *_ = next(batches.parts(0))
    assert records is batches.dataset.records
    assert len(rows) > 1  # many batches at once


def num_kept(folder):
    """Returns the bytes that the records in a cache take on the disk."""
    return sum(512 * path.stat().st_blocks for path in folder.glob("*/records"))


def test_a_cache_that_is_full_keeps_what_it_has_and_stays_within_its_limit(
    local, store, url, folder
):
    _numpy(url, cache_gb=QUARTER)
    held = mapped.MappedDataset(Folder(url, folder, QUARTER), "train").cache
    before = held.states.copy()
    assert 20 < before.sum() < 36
    assert num_kept(folder) <= 1.1e6
    store.bytes_sent = 0
    _numpy(url, cache_gb=QUARTER)
    assert (held.states >= before).all()
    assert num_kept(folder) <= 1.1e6
    stride = Manifest.load(local).layout.stride
    # A few neighbours are read before the cache turns out to be full.
    assert store.bytes_sent < (121 - before[:121].sum() + 8) * stride


def test_a_reader_and_its_copies_may_have_a_cache_of_their_own(local, url, folder, tmp_path):
    own = tmp_path / "own"
    assert_same(_tensorflow(url, cache_dir=own, cache_gb=QUARTER), _numpy(local))
    assert 8e5 < num_kept(own) <= 1.1e6
    dataset = mapped.MappedDataset(Folder(url, own), "train")
    assert_same([pickle.loads(pickle.dumps(dataset))[7]], [dataset[7]])
    assert not folder.exists()
    with pytest.raises(ValueError, match="cache_gb must be at least 0, received -1"):
        _numpy(url, cache_gb=-1)


def test_an_unused_dataset_makes_room_and_one_in_use_does_not(folder, tmp_path):
    def fill(seed):
        sizes = {"num_examples": {"train": 90}, "image_shape": (99, 99, 1), "num_shards": 1}
        manifest = write_dataset(tmp_path / str(seed), seed=seed, **sizes)
        opened = DatasetCache(manifest, "", folder, 1.5e-9 * manifest.num_bytes)
        records = np.fromfile(tmp_path / str(seed) / manifest.shards[0].name, np.uint8)
        opened.keep(0, records.reshape(-1, manifest.layout.stride))
        return opened

    used, old = fill(0), fill(1)
    part, old_folder = int(old.states.sum()), old.path.parent
    assert old.is_full
    assert 0 < part < 90
    del old
    new = fill(2)
    assert not old_folder.exists()
    assert used.states.sum() == 90
    assert int(new.states.sum()) == pytest.approx(part, abs=5)


def test_a_folder_that_holds_anything_else_is_refused_and_left_as_it_is(local, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds precious\.txt"):
        DatasetCache(Manifest.load(local), "", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_a_cache_is_its_owners_alone_and_one_of_another_user_is_refused(url, folder, monkeypatch):
    folder.mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        _numpy(url)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    (identity,) = (name for name in modes if len(name) == 64)
    assert modes.pop(identity) == 0o700
    assert modes == dict.fromkeys(("CACHEDIR.TAG", "lock", "records", "states"), 0o600)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755  # shared on purpose
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UserError, match=r"belongs to another user .* cache of their own"):
        _numpy(url)


def test_links_are_neither_followed_nor_deleted_through_to_make_room(local, url, folder, tmp_path):
    _numpy(url)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("records", "states", "lock"):
        (elsewhere / name).write_text("precious")
    (folder / ("0" * 64)).symlink_to(elsewhere)
    _numpy(url, cache_gb=1e-6)
    assert {path.read_text() for path in elsewhere.iterdir()} == {"precious"}


def _is_of_no_home(folder, monkeypatch, _):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)


def _is_short_of_room(folder, _, stack):
    shutil.rmtree(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, (soft, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))


def _has_a_link(folder, *_):
    (path,) = folder.glob("*/records")
    path.unlink()
    path.symlink_to(folder / "missing")


DAMAGES = {
    "no home": _is_of_no_home,
    "a limit on files": _is_short_of_room,
    "a link as records": _has_a_link,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_cannot_be_cached_is_read_without_a_cache_with_one_warning(
    local, url, folder, monkeypatch, caplog, damage
):
    few = {"examples": range(20)}
    _numpy(url, **few)
    with contextlib.ExitStack() as stack:
        damage(folder, monkeypatch, stack)
        caplog.clear()
        for _ in range(2):
            assert_same(_numpy(url, **few), _numpy(local, **few))
    (warning,) = caplog.messages
    assert "reading each record anew" in warning
    assert not (folder / "missing").exists()


FAULTS = {"404 Not Found": 2, "503 Slow Down": 3, "cut": 2, "garbled": 1, "short": 1}


@pytest.mark.parametrize(("fault", "times"), FAULTS.items())
def test_an_answer_that_fails_is_asked_for_again(local, store, url, fault, times):
    with store.failing(fault, after=20, times=times):  # after the manifest and the sizes
        assert_same(_numpy(url, cache_gb=0), _numpy(local))
        assert not store.faults
    with store.failing("cut", times=1):
        assert Manifest.load(url) == Manifest.load(local)
        assert not store.faults


@pytest.mark.parametrize("reader", ["make_batches", "make_dataset"])
def test_another_version_of_a_shard_is_an_error_that_names_it(store, url, monkeypatch, reader):
    monkeypatch.setattr(fetch, "_MOST_BYTES_AHEAD", 1 << 20)
    read = getattr(tfrecord_io, reader)
    batches = iter(read(url, split="train", batch_size=32, epochs=None, cache_gb=0))
    next(batches)
    name = "data/train-00002-of-00004.tfrecord"
    store.put(name, bytes(len(store.read(name)[""])))
    with pytest.raises(Exception, match=rf"StoreError.*{name} changed|^s3.*{name} changed"):
        collections.deque(itertools.islice(batches, 1000), maxlen=0)


def test_records_of_two_versions_of_a_shard_never_mix(local, store, url, tmp_path):
    replaced, other = tmp_path / "replaced", tmp_path / "other"
    write_dataset(other, seed=1, **SIZES)
    name = "train-00002-of-00004.tfrecord"
    shutil.copytree(local, replaced)
    shutil.copy(other / name, replaced / name)
    wanted, half = _numpy(local), range(0, 121, 2)
    in_use = tfrecord_io.make_dataset(url, split="train", batch_size=6)
    assert_same(_numpy(url, examples=half), _numpy(local, examples=half))
    store.put(
        f"data/{name}", (other / name).read_bytes()
    )  # for the old manifest, with checksums that fit
    assert_same(_numpy(url), _numpy(replaced))
    with pytest.raises(Exception, match=f"{name} changed since it was first read"):
        next(iter(in_use))
    store.put(f"data/{name}", (local / name).read_bytes())
    assert_same(_numpy(url), wanted)
    sent = store.bytes_sent
    assert_same(_tensorflow(url), wanted)
    assert store.bytes_sent - sent < 20_000  # the manifest


def test_a_damaged_record_is_an_error_that_names_it(local, store, url, monkeypatch):
    monkeypatch.setattr(remote, "NUM_ATTEMPTS", 2)
    name = "train-00001-of-00004.tfrecord"
    content = bytearray((local / name).read_bytes())
    content[Manifest.load(local).layout.stride * 7 + 1000] ^= 1
    store.put(f"data/{name}", bytes(content))
    with pytest.raises(StoreError, match=rf"{name}: record 7 does not match its checksum"):
        _numpy(url)


def test_a_kept_record_that_is_damaged_is_fetched_again_once(local, store, url, folder):
    wanted = _numpy(local)
    assert_same(_numpy(url), wanted)
    (records,) = folder.glob("*/records")
    np.memmap(records, np.uint8, "r+")[:100_000] = 0
    stride = Manifest.load(local).layout.stride
    for num_fetched in (3, 0):
        mapped._checked.clear()  # as another process
        store.bytes_sent = 0
        assert_same(_numpy(url), wanted)
        assert num_fetched * stride <= store.bytes_sent < num_fetched * stride + 20_000


def test_a_process_that_is_killed_leaves_the_cache_right_for_the_one_that_shares_it(
    local, url, folder
):
    program = (
        "import sys, tfrecord_io\n"
        "options = {'split': 'train', 'batch_size': 6, 'epochs': None}\n"
        "for _ in tfrecord_io.make_batches(sys.argv[1], **options): pass"
    )
    process = subprocess.Popen([sys.executable, "-c", program, url], cwd=ROOT)
    try:
        wait_until(lambda: num_kept(folder), process)
        assert_same(_numpy(url, epochs=2), _numpy(local, epochs=2))
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert_same(_numpy(url), _numpy(local))


@pytest.mark.slow  # TensorFlow takes seconds to import
@pytest.mark.parametrize("read", ["make_batches", "make_dataset"])
def test_a_program_ends_while_a_silent_server_is_waited_for(store, url, read):
    program = (
        "import sys, tfrecord_io\n"
        f"batches = iter(tfrecord_io.{read}(sys.argv[1], split='train', batch_size=6, epochs=None, "
        "cache_gb=0))\n"
        "next(batches)"
    )
    with store.failing("silent", after=40):
        subprocess.run([sys.executable, "-c", program, url], cwd=ROOT, check=True, timeout=150)


@pytest.mark.parametrize("read", [_numpy, _tensorflow])
def test_files_that_cannot_be_mapped_are_read_in_the_same_order(local, monkeypatch, caplog, read):
    options = {"epochs": 2, "num_replicas": 2, "replica_index": 1}
    wanted = _numpy(local, **options)

    def refuse(*_):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mapped, "map_files", refuse)
    assert_same(read(local, **options), wanted)
    assert "cannot be mapped into memory" in caplog.text
    with pytest.raises(OSError, match="Cannot allocate"):
        tfrecord_io.make_dataset(local, split="train", batch_size=2, engine="mmap")
