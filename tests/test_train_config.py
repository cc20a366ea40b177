import argparse
import json

import pytest

from train import config as train_config
from train.config import TrainConfig
from train.devices import Devices
from train.errors import ConfigError


def parse(*argv):
    parser = argparse.ArgumentParser()
    train_config.add_arguments(parser)
    return train_config.given_fields(parser.parse_args(argv))


def resolve(config, num_examples=1000, num_replicas=1):
    names = tuple(f"CPU:{index}" for index in range(num_replicas))
    return config.resolve(num_examples, Devices(backend="tensorflow", names=names))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "alexnet"}, "--model must be small_resnet, convnet"),
        ({"epochs": 0}, "--epochs must be at least 1; received 0"),
        ({"replica_batch_size": 0}, "--replica_batch_size must be at least 1"),
        ({"learning_rate": 0.0}, "--learning_rate must be above 0"),
        ({"learning_rate": float("nan")}, "--learning_rate must be above 0"),
        ({"dropout": 1.0}, "--dropout must be below 1; received 1.0"),
        ({"label_smoothing": 1.0}, "--label_smoothing must be below 1"),
        ({"ema_decay": -0.1}, "--ema_decay must be at least 0"),
        ({"augment_strength": -1.0}, "--augment_strength must be at least 0"),
        ({"weight_decay": -0.1}, "--weight_decay must be at least 0"),
        ({"mixup": float("nan")}, "--mixup must be at least 0"),
        ({"sensitivity": 1.01}, "--sensitivity must be at most 1"),
        ({"sensitivity": float("nan")}, "--sensitivity must be above 0"),
        (
            {"normalize": "data", "model": "vgg16"},
            "--normalize is only for small_resnet and convnet",
        ),
        ({"best_by": "loss"}, "--best_by must be last, val_loss or val_accuracy"),
        ({"folds": 1}, "--folds must be at least 2"),
        ({"folds": 5, "fold": -1}, "--fold must be at least 0; received -1"),
        ({"fold_splits": "train"}, "--fold, --fold_splits and --seeds need --folds"),
        ({"fold": 0}, "--fold, --fold_splits and --seeds need --folds"),
        ({"seeds": 2}, "--fold, --fold_splits and --seeds need --folds"),
        ({"folds": 5, "fold": 5}, r"--fold must be in 0\.\.4, received 5"),
        ({"epochs": 2, "head_epochs": 3}, "--head_epochs 3 is more than --epochs 2"),
        ({"gpu_memory": "some"}, "--gpu_memory must be growth, all or a number"),
        ({"weights": "imagenet"}, "small_resnet has no ImageNet weights"),
        ({"profile": "20,10"}, "--profile must be the first and the last step"),
        ({"profile": "0,10"}, "--profile must be"),
        ({"visible_gpus": "a"}, "--visible_gpus must be indices"),
    ],
)
def test_a_wrong_value_is_refused_with_the_flag_and_what_was_received(fields, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig.of(**fields)


def test_every_field_is_a_flag_and_arrives_with_its_type():
    arguments = parse(
        "--data=x", "--epochs=3", "--dropout=0.5", "--augment", "--no-jit_compile", "--gpus=2",
        "--weights=none",
    )  # fmt: skip
    config = train_config.from_arguments(arguments, None)
    assert (config.input.data, config.input.epochs, config.network.dropout) == ("x", 3, 0.5)
    devices = config.devices
    assert (config.augmentation.augment, devices.jit_compile, devices.gpus) == (True, False, 2)
    assert config.network.weights == "none"
    # Flags that are not given leave no trace, so that a file can fill them.
    assert parse() == {}
    with pytest.raises(ConfigError, match="--data is missing"):
        train_config.from_arguments({}, None)


def test_a_resolved_configuration_has_decided_everything_that_can_be_decided():
    resolved = resolve(TrainConfig.of(data="x", model="vgg16"), num_replicas=2)
    assert (resolved.input.global_batch_size, resolved.input.replica_batch_size) == (64, 32)
    assert (resolved.network.head_epochs, resolved.network.trainable_layers) == (1, 4)
    assert (resolved.network.weights, resolved.optimizer.weight_decay) == ("imagenet", 0.05)
    assert (resolved.devices.precision, resolved.devices.jit_compile) == ("float32", False)
    assert resolved.input.epochs == 27  # 3,400 x sqrt(1,000) / 4 images shown
    assert resolved.optimizer.warmup_steps == 22  # 5 % of 27 x 1,000 / 64
    assert resolved.optimizer.ema_decay == pytest.approx(1 - 25 / 422, abs=1e-6)
    left_open = {name for name, value in resolved.to_dict().items() if value is None}
    assert left_open == {
        "cache_dir", "cache_gb",
        "normalize", "folds", "fold_splits", "fold", "gpus", "visible_gpus", "cpu_devices",
        "profile",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "num_examples", "epochs"),
    [
        ({}, 537, 147),
        ({}, 2000, 76),
        ({}, 84_000, 12),
        ({}, 10_000_000, 3),
        ({}, 5, 300),
        ({"model": "resnet50"}, 537, 37),
        ({"model": "resnet50", "weights": "none"}, 537, 147),
        ({"epochs": 4}, 537, 4),
    ],
)
def test_the_length_of_a_run_follows_from_the_data_unless_it_is_given(fields, num_examples, epochs):
    config = TrainConfig.of(data="x", **fields)
    assert resolve(config, num_examples=num_examples).input.epochs == epochs


@pytest.mark.parametrize(
    ("num_examples", "num_replicas", "replica_batch_size"),
    [
        (1, 1, 1), (5, 1, 5), (5, 2, 2), (31, 1, 31), (9_999, 1, 32), (10_000, 1, 64),
        (10_000, 4, 64),
    ],
)  # fmt: skip
def test_a_batch_is_no_larger_than_the_data(num_examples, num_replicas, replica_batch_size):
    resolved = resolve(
        TrainConfig.of(data="x"), num_examples=num_examples, num_replicas=num_replicas
    )
    assert resolved.input.replica_batch_size == replica_batch_size
    assert resolved.input.global_batch_size == replica_batch_size * num_replicas


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": "small_resnet"}, ("data", 0, 0.3, 0, None)),
        ({"model": "convnet"}, ("unit", 64, 0.0, 0, None)),
        ({"model": "vgg16"}, (None, 64, 0.0, 1, 4)),
        ({"model": "vgg16", "weights": "none"}, (None, 64, 0.0, 0, None)),
        ({"model": "densenet121"}, (None, 0, 0.3, 1, 4)),
    ],
)
def test_each_network_has_its_own_input_head_and_frozen_layers(fields, expected):
    names = ("normalize", "head_units", "dropout", "head_epochs", "trainable_layers")
    network = resolve(TrainConfig.of(data="x", **fields)).network
    assert tuple(getattr(network, name) for name in names) == expected


def test_what_is_given_is_not_decided_anew():
    given = {
        "normalize": "image", "head_units": 8, "dropout": 0.0, "weight_decay": 0.0,
        "warmup_steps": 0, "ema_decay": 0.0, "head_epochs": 0,
    }  # fmt: skip
    resolved = resolve(TrainConfig.of(data="x", **given)).to_dict()
    assert {name: resolved[name] for name in given} == given


def test_the_decay_of_the_average_is_never_negative():
    assert resolve(TrainConfig.of(data="x", epochs=1), num_examples=5).optimizer.ema_decay == 0


def test_resolving_twice_changes_nothing():
    once = resolve(TrainConfig.of(data="x", scale_learning_rate=True), num_replicas=4)
    assert resolve(once, num_replicas=4) == once


def test_the_linear_rule_scales_both_rates_and_warms_up():
    resolved = resolve(
        TrainConfig.of(data="x", scale_learning_rate=True, epochs=20, learning_rate=0.1),
        num_examples=640,
        num_replicas=2,
    )
    assert resolved.optimizer.learning_rate == pytest.approx(0.2)
    assert resolved.optimizer.fine_tune_learning_rate == pytest.approx(2e-4)
    assert resolved.optimizer.warmup_steps == 50  # five epochs of 640 / 64 steps
    assert not resolved.optimizer.scale_learning_rate


@pytest.mark.parametrize(
    ("fields", "num_examples", "num_replicas", "message"),
    [
        ({"global_batch_size": 10}, 1000, 4, "10 cannot be split evenly over 4 replicas"),
        ({"replica_batch_size": 64}, 10, 1, "takes 64 images, but the training split has only 10"),
    ],
)
def test_a_batch_that_does_not_suit_the_data_or_the_devices_is_refused(
    fields, num_examples, num_replicas, message
):
    with pytest.raises(ConfigError, match=message):
        resolve(TrainConfig.of(data="x", **fields), num_examples, num_replicas)


def test_a_run_can_be_repeated_from_its_file_with_flags_laid_over_it(tmp_path):
    config = resolve(TrainConfig.of(data="x", epochs=7, seed=3))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": config.to_dict()}))
    assert train_config.from_arguments({}, str(path)) == config
    assert train_config.from_arguments({}, str(tmp_path)) == config
    assert train_config.from_arguments({"seed": 4}, str(path)).input.seed == 4


@pytest.mark.parametrize(
    "text", ["no json", "{}", '{"config": {"colour": 1}}', '{"config": {"epochs": "3"}}']
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        train_config.load(path)


def test_differences_name_what_changes_learning_and_leave_out_what_does_not():
    ours = TrainConfig.of(data="x", epochs=2, gpus=2, step_timeout=5.0).to_dict()
    theirs = TrainConfig.of(data="y", epochs=3).to_dict()
    assert train_config.differences(ours, theirs) == ["epochs: 3 in the folder, 2 requested"]
