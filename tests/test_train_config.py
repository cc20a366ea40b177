import argparse
import json

import pytest

from train import config as train_config
from train.config import ConfigError, TrainConfig


def parse(*argv):
    parser = argparse.ArgumentParser()
    train_config.add_arguments(parser)
    return vars(parser.parse_args(argv))


def resolve(config, num_examples=1000, num_replicas=1):
    return config.resolve(
        num_examples=num_examples,
        num_replicas=num_replicas,
        precision="float32",
        jit_compile=False,
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "alexnet"}, "--model must be one of convnet"),
        ({"epochs": 0}, "--epochs must be at least 1; received 0"),
        ({"replica_batch_size": 0}, "--replica_batch_size must be at least 1"),
        ({"learning_rate": 0.0}, "--learning_rate must be above 0"),
        ({"learning_rate": float("nan")}, "--learning_rate must be above 0"),
        ({"dropout": 1.0}, "--dropout must be in 0..1"),
        ({"epochs": 2, "head_epochs": 3}, "--head_epochs 3 is more than --epochs 2"),
        ({"gpu_memory": "some"}, "--gpu_memory must be growth, all or a number"),
        ({"weights": "imagenet"}, "convnet has no ImageNet weights"),
        ({"profile": "20,10"}, "--profile must be the first and the last step"),
        ({"profile": "0,10"}, "--profile must be"),
        ({"visible_gpus": "a"}, "--visible_gpus must be indices"),
    ],
)
def test_a_wrong_value_is_refused_with_the_flag_and_what_was_received(fields, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**fields)


def test_every_field_is_a_flag_and_arrives_with_its_type():
    arguments = parse(
        "--data=x", "--epochs=3", "--dropout=0.5", "--augment", "--no-jit_compile", "--gpus=2",
        "--weights=none",
    )  # fmt: skip
    config = train_config.from_arguments(arguments, None)
    assert (config.data, config.epochs, config.dropout) == ("x", 3, 0.5)
    assert (config.augment, config.jit_compile, config.gpus) == (True, False, 2)
    assert config.weights == "none"


def test_flags_that_are_not_given_leave_no_trace_so_that_a_file_can_fill_them():
    assert parse() == {}


def test_the_dataset_must_be_named():
    with pytest.raises(ConfigError, match="--data is missing"):
        train_config.from_arguments({}, None)


def test_a_resolved_configuration_has_decided_everything_that_can_be_decided():
    resolved = resolve(TrainConfig(data="x", model="vgg16"), num_replicas=2)
    assert resolved.weights == "imagenet"
    assert (resolved.global_batch_size, resolved.replica_batch_size) == (128, 64)
    assert (resolved.head_epochs, resolved.trainable_layers) == (1, 4)
    assert (resolved.precision, resolved.jit_compile, resolved.warmup_steps) == (
        "float32",
        False,
        0,
    )


def test_resolving_twice_changes_nothing():
    once = resolve(TrainConfig(data="x", scale_learning_rate=True), num_replicas=4)
    assert resolve(once, num_replicas=4) == once


def test_a_network_from_nothing_trains_all_layers_from_the_start():
    resolved = resolve(TrainConfig(data="x", model="vgg16", weights="none"))
    assert (resolved.head_epochs, resolved.trainable_layers) == (0, None)


def test_the_linear_rule_scales_both_rates_and_warms_up():
    resolved = resolve(
        TrainConfig(data="x", scale_learning_rate=True, epochs=20, learning_rate=0.1),
        num_examples=640,
        num_replicas=2,
    )
    assert resolved.learning_rate == pytest.approx(0.2)
    assert resolved.fine_tune_learning_rate == pytest.approx(2e-4)
    assert resolved.warmup_steps == 25  # five epochs of 640 / 128 steps
    assert not resolved.scale_learning_rate


def test_a_batch_that_cannot_be_split_evenly_is_refused():
    with pytest.raises(ConfigError, match="10 cannot be split evenly over 4 replicas"):
        resolve(TrainConfig(data="x", global_batch_size=10), num_replicas=4)


def test_a_batch_larger_than_the_training_split_is_refused():
    with pytest.raises(ConfigError, match="takes 64 images, the training split has 10"):
        resolve(TrainConfig(data="x"), num_examples=10)


def test_a_run_can_be_repeated_from_its_file_with_flags_laid_over_it(tmp_path):
    config = resolve(TrainConfig(data="x", epochs=7, seed=3))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": config.to_dict()}))
    assert train_config.from_arguments({}, str(path)) == config
    assert train_config.from_arguments({}, str(tmp_path)) == config
    assert train_config.from_arguments({"seed": 4}, str(path)).seed == 4


@pytest.mark.parametrize("text", ["no json", "{}", '{"config": {"colour": 1}}'])
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        train_config.load_fields(path)


def test_differences_name_what_changes_learning_and_leave_out_what_does_not():
    ours = TrainConfig(data="x", epochs=2, gpus=2, step_timeout=5.0).to_dict()
    theirs = TrainConfig(data="y", epochs=3).to_dict()
    assert train_config.differences(ours, theirs) == ["epochs: 3 there, 2 asked for"]
