"""Mapped shards as a map-style dataset: for PyTorch, in processes that never see TensorFlow."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from builds import ROOT
from dataset_factory import stored, write_dataset

from tfrecord_io import ManifestError, schema
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.reading.records import Rows, lay_out

NUM_EXAMPLES = 23


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mapped")
    write_dataset(path, num_examples={"train": NUM_EXAMPLES + 2}, num_shards=4, num_left_out=2)
    return path


def test_an_example_is_what_the_shard_holds(directory: Path) -> None:
    images, labels, keys = stored(directory)
    dataset = MappedDataset(directory, "train")
    assert len(dataset) == NUM_EXAMPLES
    for example in range(NUM_EXAMPLES):
        image, label = dataset[example]
        assert image.tolist() == images[example].tolist()
        assert label.tolist() == labels[example].tolist()
    assert dataset.keys(range(NUM_EXAMPLES)) == keys


def test_a_batch_is_gathered_over_shards_and_may_be_written_to(directory: Path) -> None:
    images, labels, _ = stored(directory)
    wanted = [22, 0, 7, 7, -1]
    batch, batch_labels = MappedDataset(directory, "train")[wanted]
    assert (batch.dtype, batch_labels.dtype) == (np.uint8, np.float32)
    assert batch.tolist() == images[wanted].tolist()
    assert batch_labels.tolist() == labels[wanted].tolist()
    batch[:] = 0
    assert MappedDataset(directory, "train")[22][0].tolist() == images[22].tolist()


@pytest.mark.parametrize("index", [NUM_EXAMPLES, -NUM_EXAMPLES - 1, [0, NUM_EXAMPLES]])
def test_a_place_outside_of_the_split_is_an_index_error(
    directory: Path, index: int | list[int]
) -> None:
    with pytest.raises(IndexError, match=r"examples are 0\.\.22"):
        MappedDataset(directory, "train")[index]


def test_labels_are_read_without_the_images(directory: Path) -> None:
    dataset = MappedDataset(directory, "train")
    places = [4, 0, len(dataset) - 1]
    np.testing.assert_array_equal(dataset.labels(places), dataset[places][1])


def test_a_worker_process_gets_a_name_and_not_the_data(directory: Path) -> None:
    dataset = MappedDataset(directory, "train")
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 1000
    assert pickle.loads(pickled)[3][0].tolist() == dataset[3][0].tolist()


def test_the_map_is_read_only(directory: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        MappedDataset(directory, "train").records.array[0, 0] = 1


def test_images_are_whole_blocks_that_tensorflow_takes_without_a_copy(directory: Path) -> None:
    images, _, _ = stored(directory)
    mapped = MappedDataset(directory, "train")
    layout = mapped.manifest.layout
    blocks = mapped.records.blocks
    assert blocks.ctypes.data % 64 == 0
    assert np.shares_memory(blocks, mapped.records.array)
    by_row = blocks.reshape(-1, layout.stride)[mapped.rows(np.arange(NUM_EXAMPLES))]
    pixels, rest = np.split(by_row, [layout.image_length], axis=1)
    assert pixels.tobytes() == images.tobytes()
    slot = layout.features[schema.KEY]
    first = slot.offset - layout.features[schema.IMAGE].offset - layout.image_length
    keys = [bytes(row).decode() for row in rest[:, first : first + slot.length]]
    assert keys == MappedDataset(directory, "train").keys(range(NUM_EXAMPLES))


def test_a_dataset_that_was_cut_off_is_not_mapped(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path)
    path = tmp_path / manifest.splits["train"].shards[2].name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ManifestError, match=path.name):
        MappedDataset(tmp_path, "train")


@pytest.mark.parametrize("stride", [7, 4096, 50_295, 50_688, 6000])
def test_every_shard_begins_at_a_page_and_at_a_row(stride: int) -> None:
    sizes = [3, 0, 5000, 1]
    *firsts, num_rows = lay_out(sizes, stride)
    assert all(row * stride % 4096 == 0 for row in firsts)
    index = Rows(sizes, firsts)
    rows = index(np.arange(sum(sizes)))
    assert len(set(rows.tolist())) == sum(sizes)
    assert rows.max() < num_rows
    places = [(0, 0), (0, 1), (0, 2), *((2, place) for place in range(5000)), (3, 0)]
    assert [index.find(row) for row in rows.tolist()] == places


def _run(program: str, directory: Path) -> dict[str, object]:
    """Runs a program in a process of its own and returns what it reports."""
    program = _BATCHES + program + _REPORT
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(directory)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


_BATCHES = """
import json, sys
import numpy as np
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.reading.order import BatchOrder

dataset = MappedDataset(sys.argv[1], "train")
order = BatchOrder(num_examples=len(dataset), batch_size=4, seed=7)
"""
_REPORT = """
sums = [[int(images.sum()), len(labels), labels.sum(0).tolist()] for images, labels in batches]
print(json.dumps({"sums": sums, "tensorflow": "tensorflow" in sys.modules}))
"""
_BY_HAND = "batches = [dataset[batch] for batch in order]"
# As a DataLoader does it that was not told of whole batches: fetch by numbers, then stack.
_BY_EXAMPLE = """
fetched = [dataset.__getitems__(list(batch)) for batch in order]
batches = [[np.stack(column) for column in zip(*batch)] for batch in fetched]
"""
_BY_TORCH = """
from torch.utils.data import DataLoader

batches = DataLoader(dataset, sampler=order, batch_size=None, num_workers=2)
"""


def test_a_process_without_tensorflow_reads_the_batches_of_the_order(directory: Path) -> None:
    found = _run(_BY_HAND, directory)
    assert not found["tensorflow"]
    assert sum(count for _, count, _ in found["sums"]) == NUM_EXAMPLES
    assert found == _run(_BY_EXAMPLE, directory)


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_pytorch_data_loader_gives_the_same_batches(directory: Path) -> None:
    assert _run(_BY_TORCH, directory) == _run(_BY_HAND, directory)
