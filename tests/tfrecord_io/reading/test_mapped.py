"""Mapped shards as a map-style dataset, as PyTorch asks for it."""

import pickle

import numpy as np
import pytest
from dataset_factory import assert_same, stored

import tfrecord_io
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.reading.order import BatchOrder
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


def test_the_map_is_read_only_and_tensorflow_takes_its_blocks_without_a_copy(small_dataset):
    records = MappedDataset(small_dataset, "train").records
    with pytest.raises(ValueError, match="read-only"):
        records.array[0, 0] = 1
    assert np.shares_memory(records.blocks, records.array)
    assert records.blocks.ctypes.data % 64 == 0


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


def test_a_data_loader_gets_whole_batches_or_their_examples_one_by_one(small_dataset):
    dataset = MappedDataset(small_dataset, "train")
    order = BatchOrder(num_examples=len(dataset), batch_size=4, seed=7)
    for batch in order:
        fetched = dataset.__getitems__(list(batch))
        assert_same([dataset[batch]], [map(np.stack, zip(*fetched, strict=True))])
    batches = tfrecord_io.make_batches(small_dataset, split="train", batch_size=4, seed=7)
    assert_same([*batches, *batches][6:], [dataset[batch] for batch in order])  # the second epoch
