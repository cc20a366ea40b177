import pytest

from tfrecord_io.terminal.errors import UserError
from train.machine.devices import Devices
from train.training.config import TrainConfig
from train.training.plan import with_decisions


def resolve(num_examples=1000, num_replicas=1, image_shape=(28, 28, 1), **fields):
    names = tuple(f"CPU:{index}" for index in range(num_replicas))
    devices = Devices(backend="tensorflow", names=names)
    return with_decisions(TrainConfig.of(**fields), image_shape, num_examples, devices)


def test_a_resolved_configuration_has_decided_everything_that_can_be_decided():
    left_open = [name for name, value in resolve(model="vgg16").to_dict().items() if value is None]
    assert set(left_open) == {
        "cache_dir", "cache_gb", "init", "folds", "fold_splits", "fold", "gpus", "cpu_devices",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "num_examples", "num_replicas", "expected"),
    [
        # 520 x sqrt(1,000) images are shown; the warm-up takes 5 % of them.
        ({"model": "vgg16"}, 1000, 2, {"epochs": 16, "warmup_steps": 13, "global_batch_size": 64,
          "ema_decay": 1 - 25 / 250, "fine_tune_learning_rate": 1e-4, "mixup": 0.3,
          "head_epochs": 1, "trainable_layers": 4}),
        ({}, 537, 1, {"epochs": 147}),
        ({}, 10_000_000, 1, {"epochs": 3}),
        ({}, 5, 1, {"epochs": 300}),
        ({"model": "resnet50"}, 537, 1, {"epochs": 22, "mixup": 0.0}),
        ({"model": "resnet50", "weights": "none"}, 537, 1, {"epochs": 147}),
        ({"image_shape": (96, 100, 1)}, 9, 1, {"model": "efficientnet_lite0"}),
        ({"image_shape": (95, 224, 1)}, 9, 1, {"model": "small_resnet"}),
        ({"image_shape": (224, 224, 2)}, 9, 1, {"model": "small_resnet"}),
        ({"image_shape": (224, 224, 1), "weights": "none"}, 9, 1, {"model": "small_resnet"}),
        # A batch has at most as many images as the data.
        ({}, 5, 1, {"replica_batch_size": 5, "global_batch_size": 5}),
        ({}, 5, 2, {"replica_batch_size": 2, "global_batch_size": 4}),
        ({}, 10_000, 4, {"replica_batch_size": 64, "global_batch_size": 256}),
        ({"model": "vgg16", "weights": "none"}, 1000, 1, {"head_epochs": 0}),
        # The decay of the average is never negative.
        ({"epochs": 1}, 5, 1, {"ema_decay": 0}),
        # The warm-up takes five epochs of 640 / 64 steps.
        ({"scale_learning_rate": True, "epochs": 20, "learning_rate": 0.1, "model": "resnet50"},
         640, 2, {"learning_rate": 0.2, "fine_tune_learning_rate": 6e-4, "warmup_steps": 50,
                  "scale_learning_rate": False}),
    ],
)  # fmt: skip
def test_what_is_not_given_follows_from_data_devices_and_network(
    fields, num_examples, num_replicas, expected
):
    config = resolve(num_examples, num_replicas, **fields)
    resolved = config.to_dict()
    assert {name: resolved[name] for name in expected} == expected
    assert resolve(num_examples, num_replicas, **resolved) == config


@pytest.mark.parametrize(
    ("num_examples", "num_replicas", "fields", "message"),
    [
        (9, 1, {"model": "alexnet"}, "--model must be one of small_resnet, convnet"),
        (9, 1, {"epochs": 0}, "--epochs must be at least 1; received 0"),
        (9, 1, {"fold_splits": "train"}, "--fold and --fold_splits need --folds"),
        (9, 1, {"augment": False, "augment_strength": 0.5}, "--augment_strength is for --augment"),
        (9, 1, {"folds": 5, "fold": 5}, r"--fold must be in 0\.\.4, received 5"),
        (9, 1, {"epochs": 2, "head_epochs": 3}, "--head_epochs 3 is more than --epochs 2"),
        (9, 1, {"model": "convnet", "weights": "imagenet"}, "convnet starts from random weights"),
        (1000, 1, {"weights": "none", "trainable_layers": 4}, "--trainable_layers"),
        (1000, 1, {"model": "vgg16", "weights": "none", "head_epochs": 1}, "--head_epochs"),
        (9, 1, {"weights": "none", "fine_tune_learning_rate": 1.0}, "--fine_tune_learning_rate"),
        (1000, 4, {"global_batch_size": 10}, "--batch_size 10 .* 4 replicas"),
        (10, 1, {"global_batch_size": 64}, "--batch_size 64 .* only 10"),
        (10, 1, {"replica_batch_size": 64}, "--replica_batch_size 64 .* only 10"),
        (1, 2, {}, "only 1; .*--devices"),
    ],
)
def test_what_is_wrong_or_does_not_suit_the_data_or_the_devices_is_refused_by_its_flag(
    num_examples, num_replicas, fields, message
):
    with pytest.raises(UserError, match=message):
        resolve(num_examples, num_replicas, **fields)
