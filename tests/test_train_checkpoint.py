import keras
import numpy as np
import pytest

from train.errors import TrainingError
from train.training import checkpoint


def variables_of(*values):
    return [keras.Variable(np.asarray(value, np.float32)) for value in values]


def numbers(variables):
    return [variable.numpy().tolist() for variable in variables]


def test_variables_and_facts_come_back_as_they_were(tmp_path):
    path = tmp_path / "checkpoint.npz"
    assert checkpoint.load(path) == ({}, {})
    # More than nine, because names must not sort 10 before 2.
    model = variables_of(*([float(index)] for index in range(12)))
    optimizer = variables_of([[1.5, 2.5]])
    checkpoint.save(path, {"model": model, "optimizer": optimizer}, {"step": 7})
    facts, groups = checkpoint.load(path)
    assert facts == {"step": 7}
    for name, saved in (("model", model), ("optimizer", optimizer)):
        fresh = variables_of(*(np.zeros(variable.shape) for variable in saved))
        checkpoint.restore(fresh, groups[name])
        assert numbers(fresh) == numbers(saved)


@pytest.mark.parametrize("values", [([1.0], [2.0]), ([1.0, 2.0],)])
def test_another_network_is_refused(values):
    with pytest.raises(TrainingError, match="it belongs to another configuration"):
        checkpoint.restore(variables_of(*values), [np.ones(1, np.float32)])


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.9, None])
def test_a_damaged_file_is_reported_not_used(tmp_path, keep):
    path = tmp_path / "checkpoint.npz"
    checkpoint.save(path, {"model": variables_of([1.0] * 1000)}, {"step": 1})
    content = bytearray(path.read_bytes())
    if keep is None:
        content[len(content) // 2] ^= 1
    path.write_bytes(content if keep is None else content[: int(keep * len(content))])
    with pytest.raises(TrainingError, match=r"checkpoint\.npz cannot be read"):
        checkpoint.load(path)


def test_an_interrupted_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "checkpoint.npz"
    checkpoint.save(path, {"model": variables_of([1.0])}, {"step": 1})
    with pytest.raises(TypeError):
        checkpoint.save(path, {"model": variables_of([2.0])}, {"step": object()})
    assert checkpoint.load(path)[0] == {"step": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.npz"]
