"""Index files say where DALI finds each record."""

import struct
from importlib.util import find_spec

import pytest
from dataset_factory import write_dataset
from marked_images import run_python

from tfrecord_io import ManifestError, image_key, index
from tfrecord_io.__main__ import main


def frames(path):
    """A line of offset and size for each record, from the lengths in a TFRecord file itself."""
    data, offset, lines = path.read_bytes(), 0, ""
    while offset < len(data):
        size = 16 + struct.unpack_from("<Q", data, offset)[0]
        lines += f"{offset} {size}\n"
        offset += size
    return lines


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_each_line_is_the_frame_of_a_record(tmp_path, dtype):
    manifest = write_dataset(tmp_path, dtype=dtype)
    written = index.write_index(tmp_path)
    names = [shard.name for split in manifest.splits.values() for shard in split.shards]
    assert written == [tmp_path / f"{name}.idx" for name in names]
    for name, path in zip(names, written, strict=True):
        assert path.read_text() == frames(tmp_path / name)


def test_the_command_writes_into_another_folder(tmp_path, capsys):
    write_dataset(tmp_path / "data", num_examples={"train": 1}, num_shards=2)
    assert main(["index", str(tmp_path / "data"), "--index_dir", str(tmp_path / "idx")]) == 0
    assert "wrote 2 index files" in capsys.readouterr().out
    assert sorted(path.read_text().count("\n") for path in tmp_path.glob("idx/*")) == [0, 1]
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


HAS_DALI = bool(find_spec("nvidia") and find_spec("nvidia.dali"))


@pytest.mark.skipif(not HAS_DALI, reason="NVIDIA DALI is not installed")
def test_dali_reads_the_shards_by_these_files(tmp_path):
    write_dataset(tmp_path, num_examples={"train": 7}, num_shards=2)
    index.write_index(tmp_path)
    # Its own process, because DALI brings libraries that TensorFlow has in other versions.
    done = run_python(_DALI_PROGRAM, tmp_path)
    assert done.stdout.split() == [image_key(f"train/{example}") for example in range(7)]


_DALI_PROGRAM = """
import glob, sys
from nvidia.dali import fn, pipeline_def, tfrecord

paths = sorted(glob.glob(sys.argv[1] + "/*.tfrecord"))

@pipeline_def(batch_size=7, num_threads=1, device_id=None)
def keys():
    features = {"key": tfrecord.FixedLenFeature((), tfrecord.string, "")}
    return fn.readers.tfrecord(
        path=paths, index_path=[path + ".idx" for path in paths], features=features
    )["key"]

pipeline = keys()
pipeline.build()
(batch,) = pipeline.run()
for key in batch:
    print(bytes(key).decode())
"""
