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
    # More than nine, because names must not sort 10 before 2.
    model = variables_of(*([float(index)] for index in range(12)))
    optimizer = variables_of([[1.5, 2.5]])
    checkpoint.save(path, {"model": model, "optimizer": optimizer}, {"step": 7})
    new_model, new_optimizer = variables_of(*([0.0],) * 12), variables_of([[0.0, 0.0]])
    checkpoint.restore(path, {"model": new_model, "optimizer": new_optimizer})
    assert numbers(new_model) == numbers(model)
    assert numbers(new_optimizer) == numbers(optimizer)
    assert checkpoint.load_facts(path) == {"step": 7}


def test_no_file_means_no_facts(tmp_path):
    assert checkpoint.load_facts(tmp_path / "checkpoint.npz") is None


def test_another_network_is_refused(tmp_path):
    path = tmp_path / "checkpoint.npz"
    checkpoint.save(path, {"model": variables_of([1.0])}, {})
    with pytest.raises(
        TrainingError, match="1 variables in the group model, but this network has 2"
    ):
        checkpoint.restore(path, {"model": variables_of([1.0], [2.0])})
    with pytest.raises(TrainingError, match=r"has shape \(2,\)"):
        checkpoint.restore(path, {"model": variables_of([1.0, 2.0])})


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.9])
def test_a_truncated_file_is_reported_not_used(tmp_path, keep):
    path = tmp_path / "checkpoint.npz"
    checkpoint.save(path, {"model": variables_of([1.0] * 1000)}, {"step": 1})
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(TrainingError, match="cannot be read"):
        checkpoint.load_facts(path)


def test_a_flipped_bit_is_reported_not_used(tmp_path):
    path = tmp_path / "checkpoint.npz"
    checkpoint.save(path, {"model": variables_of([1.0] * 1000)}, {"step": 1})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(TrainingError, match="cannot be read"):
        checkpoint.restore(path, {"model": variables_of([0.0] * 1000)})


def test_an_interrupted_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "checkpoint.npz"
    checkpoint.save(path, {"model": variables_of([1.0])}, {"step": 1})
    with pytest.raises(TypeError):
        checkpoint.save(path, {"model": variables_of([2.0])}, {"step": object()})
    assert checkpoint.load_facts(path) == {"step": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.npz"]
