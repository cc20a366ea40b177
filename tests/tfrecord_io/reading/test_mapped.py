"""Mapped shards as a map-style dataset: for PyTorch, in processes that never see TensorFlow."""

import json
import pickle

import numpy as np
import pytest
from dataset_factory import stored
from marked_images import run_python

from tfrecord_io.format import schema
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.reading.records import Rows, lay_out

NUM_EXAMPLES = 23


def test_a_batch_is_gathered_over_shards_and_may_be_written_to(small_dataset):
    images, labels, keys = stored(small_dataset)
    dataset = MappedDataset(small_dataset, "train")
    wanted = [*range(NUM_EXAMPLES), 7, 7, -1]
    batch, batch_labels = dataset[wanted]
    assert (batch.dtype, batch_labels.dtype) == (np.uint8, np.float32)
    assert batch.tolist() == images[wanted].tolist()
    assert batch_labels.tolist() == dataset.labels(wanted).tolist() == labels[wanted].tolist()
    assert dataset.keys(range(len(dataset))) == keys
    batch[:] = 0
    image, label = dataset[22]
    assert (image.tolist(), label.tolist()) == (images[22].tolist(), labels[22].tolist())


@pytest.mark.parametrize("index", [NUM_EXAMPLES, -NUM_EXAMPLES - 1, [0, NUM_EXAMPLES]])
def test_a_place_outside_of_the_split_is_an_index_error(small_dataset, index):
    with pytest.raises(IndexError, match=r"examples are 0\.\.22"):
        MappedDataset(small_dataset, "train")[index]


def test_a_worker_process_gets_a_name_and_not_the_data(small_dataset):
    dataset = MappedDataset(small_dataset, "train")
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 1000
    assert pickle.loads(pickled)[3][0].tolist() == dataset[3][0].tolist()


def test_the_map_is_read_only(small_dataset):
    with pytest.raises(ValueError, match="read-only"):
        MappedDataset(small_dataset, "train").records.array[0, 0] = 1


def test_images_are_whole_blocks_that_tensorflow_takes_without_a_copy(small_dataset):
    images, _, _ = stored(small_dataset)
    mapped = MappedDataset(small_dataset, "train")
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
    assert keys == MappedDataset(small_dataset, "train").keys(range(NUM_EXAMPLES))


@pytest.mark.parametrize("stride", [7, 4096, 50_295, 50_688, 6000])
def test_every_shard_begins_at_a_page_and_at_a_row(stride):
    sizes = [3, 0, 5000, 1]
    *firsts, num_rows = lay_out(sizes, stride)
    assert all(row * stride % 4096 == 0 for row in firsts)
    index = Rows(sizes, firsts)
    rows = index(np.arange(sum(sizes)))
    assert len(set(rows.tolist())) == sum(sizes)
    assert rows.max() < num_rows
    places = [(0, 0), (0, 1), (0, 2), *((2, place) for place in range(5000)), (3, 0)]
    assert [index.find(row) for row in rows.tolist()] == places


def _run(program, directory, **variables):
    """Runs a program in a process of its own; returns the JSON that it prints."""
    done = run_python(program, directory, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


#: As a DataLoader does it: by whole batches, and by numbers if it was not told of batches.
_BY_HAND = """
import json, sys
import numpy as np
import tfrecord_io
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.reading.order import BatchOrder

dataset = MappedDataset(sys.argv[1], "train")
order = BatchOrder(num_examples=len(dataset), batch_size=4, seed=7)
batches = [dataset[batch] for batch in order]
fetched = [dataset.__getitems__(list(batch)) for batch in order]
stacked = [[np.stack(column) for column in zip(*batch)] for batch in fetched]
sums = [
    [[int(images.sum()), len(labels), labels.sum(0).tolist()] for images, labels in found]
    for found in (batches, stacked)
]
next(iter(tfrecord_io.make_batches(sys.argv[1], split="train", batch_size=4, epochs=None)))
print(json.dumps([*sums, "tensorflow" in sys.modules]))
"""
_BY_TORCH = _BY_HAND.replace(
    "batches = [dataset[batch] for batch in order]",
    "from torch.utils.data import DataLoader\n"
    "batches = DataLoader(dataset, sampler=order, batch_size=None, num_workers=2)",
)


@pytest.mark.parametrize("program", [_BY_HAND, _BY_TORCH], ids=["by hand", "by torch"])
def test_a_process_without_tensorflow_reads_the_batches_of_the_order(small_dataset, program):
    if program == _BY_TORCH:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    batches, stacked, has_tensorflow = _run(program, small_dataset, PYTHONWARNINGS="error")
    assert not has_tensorflow
    assert sum(count for _, count, _ in batches) == NUM_EXAMPLES
    assert batches == stacked
