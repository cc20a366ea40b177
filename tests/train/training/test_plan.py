import pytest

from tfrecord_io.terminal.errors import UserError
from train.machine.devices import Devices
from train.training.config import TrainConfig
from train.training.plan import with_decisions, with_model


def resolve(num_examples=1000, num_replicas=1, image_shape=(28, 28, 1), on_gpu=False, **fields):
    names = tuple(f"CPU:{index}" for index in range(num_replicas))
    devices = Devices(backend="tensorflow", names=names, on_gpu=on_gpu)
    config = with_model(TrainConfig.of(**fields), image_shape)
    return with_decisions(config, image_shape, num_examples, devices)


def test_a_resolved_configuration_has_decided_everything_that_can_be_decided():
    left_open = [name for name, value in resolve(model="vgg16").to_dict().items() if value is None]
    assert set(left_open) == {
        "cache_dir", "cache_gb", "init", "folds", "fold_splits", "fold", "gpus", "cpu_devices",
    }  # fmt: skip


def batches(of_replica, of_step):
    return {"replica_batch_size": of_replica, "global_batch_size": of_step}


GIVEN = {"head_epochs": 0, "weight_decay": 0.0, "warmup_steps": 0, "ema_decay": 0.0}


def layers(head_epochs, trainable_layers):
    return {"head_epochs": head_epochs, "trainable_layers": trainable_layers}


@pytest.mark.parametrize(
    ("fields", "num_examples", "num_replicas", "expected"),
    [
        # 3,400 x sqrt(1,000) / 4 images are shown; the warm-up takes 5 % of them.
        ({"model": "vgg16"}, 1000, 2, {"epochs": 27, "warmup_steps": 22, **batches(32, 64)}),
        ({"model": "vgg16"}, 1000, 2, {"ema_decay": pytest.approx(1 - 25 / 422, abs=1e-6)}),
        ({"model": "vgg16"}, 1000, 1, {"weights": "imagenet", "precision": "float32"}),
        ({}, 537, 1, {"epochs": 147}),
        ({}, 84_000, 1, {"epochs": 12}),
        ({}, 10_000_000, 1, {"epochs": 3}),
        ({}, 5, 1, {"epochs": 300}),
        ({"model": "resnet50"}, 537, 1, {"epochs": 37, "mixup": 0.0}),
        ({"model": "resnet50"}, 537, 1, {"fine_tune_learning_rate": 3e-4}),
        ({"model": "vgg16"}, 537, 1, {"fine_tune_learning_rate": 1e-4, "mixup": 0.3}),
        ({"model": "resnet50", "weights": "none"}, 537, 1, {"epochs": 147}),
        ({"scale_learning_rate": True}, 537, 2, {"fine_tune_learning_rate": 3e-4}),
        ({"epochs": 4}, 537, 1, {"epochs": 4}),
        # A batch has at most as many images as the data.
        ({}, 5, 1, batches(5, 5)),
        ({}, 5, 2, batches(2, 4)),
        ({}, 9_999, 1, batches(32, 32)),
        ({}, 10_000, 4, batches(64, 256)),
        ({"model": "convnet"}, 1000, 1, layers(0, None)),
        ({"model": "vgg16"}, 1000, 1, layers(1, 4)),
        ({"model": "vgg16", "weights": "none"}, 1000, 1, layers(0, None)),
        ({"model": "densenet121"}, 1000, 1, layers(0, None)),
        (GIVEN, 1000, 1, GIVEN),
        # The decay of the average is never negative.
        ({"epochs": 1}, 5, 1, {"ema_decay": 0}),
        (
            {"scale_learning_rate": True, "epochs": 20, "learning_rate": 0.1, "model": "resnet50"},
            640,
            2,
            {
                "learning_rate": 0.2,
                "fine_tune_learning_rate": 6e-4,
                "warmup_steps": 50,  # five epochs of 640 / 64 steps
                "scale_learning_rate": False,
            },
        ),
    ],
)
def test_what_is_not_given_follows_from_data_devices_and_network(
    fields, num_examples, num_replicas, expected
):
    config = resolve(num_examples, num_replicas, **fields)
    resolved = config.to_dict()
    assert {name: resolved[name] for name in expected} == expected
    assert resolve(num_examples, num_replicas, **resolved) == config


@pytest.mark.parametrize(
    ("image_shape", "fields", "expected"),
    [
        ((96, 100, 1), {}, "efficientnet_lite0"),
        ((224, 224, 3), {"weights": "imagenet"}, "efficientnet_lite0"),
        ((95, 224, 1), {}, "small_resnet"),
        ((224, 224, 2), {}, "small_resnet"),
        ((224, 224, 1), {"weights": "none"}, "small_resnet"),
        ((28, 28, 1), {"model": "vgg16"}, "vgg16"),
    ],
)
def test_the_network_follows_from_the_size_of_the_images(image_shape, fields, expected):
    assert resolve(image_shape=image_shape, **fields).network.model == expected


@pytest.mark.parametrize(
    ("image_shape", "fields", "on_gpu", "share"),
    [
        ((224, 224, 1), {}, False, 0.7),
        ((192, 500, 3), {"model": "efficientnet_lite2"}, False, 0.7),
        ((224, 224, 1), {}, True, 0.0),
        ((224, 224, 1), {"half_size": 0.2}, True, 0.2),
        ((191, 224, 1), {}, False, 0.0),
        ((224, 224, 1), {"model": "efficientnet_lite0", "weights": "none"}, False, 0.0),
        ((224, 224, 1), {"model": "resnet50"}, False, 0.0),
    ],
)
def test_the_first_steps_have_smaller_images_where_that_saves_time(
    image_shape, fields, on_gpu, share
):
    config = resolve(image_shape=image_shape, on_gpu=on_gpu, **fields)
    assert config.augmentation.half_size == share


@pytest.mark.parametrize(
    ("num_examples", "num_replicas", "fields", "message"),
    [
        (1000, 1, {"weights": "none", "trainable_layers": 4}, "--trainable_layers"),
        (1000, 1, {"model": "vgg16", "weights": "none", "head_epochs": 1}, "--head_epochs"),
        (
            1000,
            1,
            {"weights": "none", "fine_tune_learning_rate": 1e-3},
            "--fine_tune_learning_rate",
        ),
        (1000, 1, {"model": "resnet50", "half_size": 0.5}, "--half_size"),
        (1000, 4, {"global_batch_size": 10}, "--batch_size 10 .* 4 replicas"),
        (10, 1, {"global_batch_size": 64}, "only 10; --batch_size 64"),
        (10, 1, {"replica_batch_size": 64}, "only 10; --replica_batch_size 64"),
        (1, 2, {}, "only 1; .* --devices"),
    ],
)
def test_what_does_not_suit_the_data_or_the_devices_is_refused_by_the_flag_that_was_given(
    num_examples, num_replicas, fields, message
):
    with pytest.raises(UserError, match=message):
        resolve(num_examples, num_replicas, **fields)
