"""Whole programs that read with TensorFlow: `fit`, several workers, and how they end."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from builds import ROOT
from dataset_factory import write_dataset

import tfrecord_io
from tfrecord_io import BatchOrder, MappedDataset

NUM_EXAMPLES, BATCH_SIZE = 160, 8
STEPS = NUM_EXAMPLES // BATCH_SIZE


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    write_dataset(directory, num_examples={"train": NUM_EXAMPLES}, image_shape=(4, 4, 1))
    return directory


def start(program, *words, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def output(process):
    """Returns what a program prints in its last line, as JSON."""
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(text.splitlines()[-1])


FIT = """
import json, sys
import tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras
import tfrecord_io

directory, kind, batch_size, first, epochs = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
seen = []

class Note(keras.layers.Layer):
    def call(self, images):
        tf.numpy_function(lambda rows: seen.extend(rows.tolist()), [images[:, 0, :, 0]], [])
        return tf.reshape(tf.cast(images, tf.float32) / 255, (-1, 16))

    def compute_output_shape(self, shape):
        return shape[0], 16

strategy = tf.distribute.get_strategy()
if kind == "mirrored":
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    model = keras.Sequential([keras.Input((4, 4, 1)), Note(), keras.layers.Dense(4)])
    model.compile("sgd", "mse", metrics=["mae"])
steps = 160 // batch_size
dataset = tfrecord_io.make_dataset(directory, "train", batch_size, start_step=first * steps)
model.fit(dataset, initial_epoch=first, epochs=epochs, verbose=0)
print(json.dumps(seen))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "first"), [("alone", 0), ("mirrored", 1)])
def test_fit_sees_each_epoch_of_the_order_also_after_a_restart(data, kind, first):
    seen = output(start(FIT, data, kind, BATCH_SIZE, first, 3))
    pixels = MappedDataset(data, "train")[range(NUM_EXAMPLES)][0][:, 0, :, 0]
    order = BatchOrder(num_examples=NUM_EXAMPLES, batch_size=BATCH_SIZE, epochs=None)
    steps = np.arange(first * STEPS, 3 * STEPS)
    places = order.examples_at(steps[:, np.newaxis] * BATCH_SIZE + np.arange(BATCH_SIZE))
    # The replicas of a step may come in any order.
    found = np.array(seen).reshape(len(steps), BATCH_SIZE, -1).tolist()
    wanted = pixels[places].tolist()
    assert [sorted(batch) for batch in found] == [sorted(batch) for batch in wanted]


WORKER = """
import json, sys
import tensorflow as tf
import tfrecord_io

strategy = tf.distribute.MultiWorkerMirroredStrategy()
try:
    tfrecord_io.make_dataset(sys.argv[1], "train", 8)
    raise SystemExit("all workers would read the same")
except ValueError as error:
    assert "num_replicas=2" in str(error)

def share(context):
    return tfrecord_io.make_dataset(
        sys.argv[1], "train", 8, with_keys=True,
        num_replicas=context.num_input_pipelines, replica_index=context.input_pipeline_id,
    )

batches = strategy.distribute_datasets_from_function(share)
local = [strategy.experimental_local_results(keys)[0].numpy() for *_, keys in batches]
print(json.dumps([[key.decode() for key in keys] for keys in local]))
"""


@pytest.mark.slow
def test_two_workers_cannot_read_the_same_without_saying_so(data):
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    for listener in listeners:
        listener.close()
    workers = [
        start(
            WORKER,
            data,
            TF_CONFIG=json.dumps(
                {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            ),
        )
        for index in range(2)
    ]
    shares = [output(worker) for worker in workers]
    whole = tfrecord_io.make_batches(data, "train", 8, with_keys=True)
    wanted = [[key.decode() for key in keys] for *_, keys in whole]
    assert [left + right for left, right in zip(*shares, strict=True)] == wanted


def test_numpy_readers_of_several_workers_say_which_slice_they_take(data, monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster}))
    with pytest.raises(ValueError, match="num_replicas=3 "):
        tfrecord_io.make_batches(data, "train", 9)
    assert len(tfrecord_io.make_batches(data, "train", 9, num_replicas=3)) == 18
    evaluator = {"cluster": cluster, "task": {"type": "evaluator", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(evaluator))
    assert len(tfrecord_io.make_batches(data, "train", 9)) == 18


# Programs are forked where TensorFlow is imported already: it takes seconds.
ENDS = """
import os, sys
import tensorflow, tfrecord_io

def read(how, epochs):
    dataset = tfrecord_io.make_dataset(sys.argv[1], "train", 8, epochs=epochs)
    iterator = iter(dataset)
    next(iterator)
    if how == "break":
        for _ in dataset:
            break
    elif how == "error":
        raise ValueError("the program fails")
    elif how == "term":
        os.kill(os.getpid(), 15)
    return iterator  # which ends with the program

kinds = [(how, epochs) for how in ("script", "break", "error", "term") for epochs in (None, 1)]
for how, epochs in kinds * int(sys.argv[2]):
    process = os.fork()
    if not process:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        kept = read(how, epochs)
        break
    wanted = {"script": 0, "break": 0, "error": 1, "term": -15}[how]
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == wanted, how
"""


@pytest.mark.slow
def test_a_program_that_stops_in_the_middle_of_an_epoch_ends(data):
    process = start(ENDS, data, 1)
    process.communicate(timeout=300)
    assert process.returncode == 0
