"""The folder of a run: its checkpoints, and what makes it complete."""

import random

import keras
import numpy as np
import power_cut
import pytest
from marked_images import metrics_of

from tfrecord_io.stores.files import write_last
from train.machine.errors import TrainingError
from train.networks.models import restore
from train.training import checkpoint


def variables_of(*values):
    return [keras.Variable(np.asarray(value, np.float32)) for value in values]


def test_variables_and_facts_come_back_as_they_were_in_the_same_network_alone(tmp_path):
    path = tmp_path / "checkpoint.npz"
    assert checkpoint.load_checkpoint(path) == ({}, {})
    # More than nine, because names must not sort 10 before 2.
    model = variables_of(*([float(index)] for index in range(12)))
    optimizer = variables_of([[1.5, 2.5]])
    checkpoint.save_checkpoint(path, {"model": model, "optimizer": optimizer}, {"step": 7})
    facts, groups = checkpoint.load_checkpoint(path)
    assert facts == {"step": 7}
    for name, saved in (("model", model), ("optimizer", optimizer)):
        fresh = variables_of(*(np.zeros(variable.shape) for variable in saved))
        restore(fresh, groups[name])
        for ours, theirs in zip(fresh, saved, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    for other in (variables_of([1.5], [2.5]), variables_of([1.5, 2.5])):
        with pytest.raises(TrainingError, match="it belongs to another configuration"):
            restore(other, groups["optimizer"])


@pytest.mark.parametrize("keep", [0.0, 0.9, None])
def test_a_damaged_file_is_reported_not_used(tmp_path, keep):
    path = tmp_path / "checkpoint.npz"
    checkpoint.save_checkpoint(path, {"model": variables_of([1.0] * 1000)}, {"step": 1})
    content = bytearray(path.read_bytes())
    if keep is None:
        content[len(content) // 2] ^= 1
    path.write_bytes(content if keep is None else content[: int(keep * len(content))])
    with pytest.raises(TrainingError, match=r"checkpoint\.npz cannot be read"):
        checkpoint.load_checkpoint(path)


def test_a_complete_run_has_all_its_files_whatever_a_power_cut_takes(tmp_path):
    disk = power_cut.Disk(tmp_path, random.Random(0))
    export = tmp_path / "export" / "saved_model"
    complete = {}

    def look():
        if (tmp_path / "metrics.json").exists():
            complete.setdefault("files", disk.sure())

    export.mkdir(parents=True)
    (export / "saved_model.pb").write_bytes(b"graph")
    (tmp_path / "report.html").write_text("<html>")
    with disk.watched(look):
        write_last(tmp_path / "metrics.json", {"steps": 3})
    disk.close()

    assert metrics_of(tmp_path) == {"steps": 3}
    assert complete["files"].keys() == {"export/saved_model/saved_model.pb", "report.html"}
