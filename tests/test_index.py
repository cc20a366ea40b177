"""Index files say where DALI finds each record."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from dataset_factory import write_dataset

from tfrecord_io import ManifestError, index
from tfrecord_io.__main__ import main


def _frames(path: Path) -> list[tuple[int, int]]:
    """Offset and size of each record, by reading a TFRecord file's own lengths."""
    data = path.read_bytes()
    frames = []
    offset = 0
    while offset < len(data):
        (length,) = struct.unpack_from("<Q", data, offset)
        size = 8 + 4 + length + 4
        frames.append((offset, size))
        offset += size
    return frames


def _lines(path: Path) -> list[tuple[int, ...]]:
    lines = path.read_text(encoding="ascii").splitlines()
    return [tuple(int(number) for number in line.split()) for line in lines]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_each_line_is_the_frame_of_a_record(tmp_path, dtype):
    manifest = write_dataset(tmp_path, dtype=dtype)
    written = index.write_index(tmp_path)
    names = [shard.name for split in manifest.splits.values() for shard in split.shards]
    assert written == [tmp_path / f"{name}.idx" for name in names]
    for name, path in zip(names, written, strict=True):
        assert _lines(path) == _frames(tmp_path / name)


def test_the_command_writes_into_another_folder(tmp_path, capsys):
    write_dataset(tmp_path / "data", num_examples={"train": 1}, num_shards=2)
    assert main(["index", str(tmp_path / "data"), "--index_dir", str(tmp_path / "idx")]) == 0
    assert "wrote 2 index files" in capsys.readouterr().out
    assert sorted(len(_lines(path)) for path in (tmp_path / "idx").iterdir()) == [0, 1]
    assert not list((tmp_path / "data").glob("*.idx"))


def test_no_index_is_written_of_what_is_not_there_or_truncated(tmp_path):
    with pytest.raises(ManifestError, match="does not exist"):
        index.write_index(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    manifest = write_dataset(tmp_path)
    path = tmp_path / manifest.splits["train"].shards[0].name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ManifestError, match=path.name):
        index.write_index(tmp_path)
