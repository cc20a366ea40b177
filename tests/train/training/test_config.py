import argparse
import json

import pytest

from tfrecord_io.terminal.errors import UserError
from train.machine.devices import Devices
from train.training import config as train_config
from train.training.config import TrainConfig

#: A dataset whose manifest is not read before the run.
DATA = "s3://bucket/data"


def parse(*argv, **defaults):
    parser = argparse.ArgumentParser()
    train_config.add_arguments(parser)
    parser.add_argument("--config")
    return train_config.from_arguments(parser.parse_args(argv), **defaults)


def resolve(num_examples=1000, num_replicas=1, image_shape=(28, 28, 1), **fields):
    names = tuple(f"CPU:{index}" for index in range(num_replicas))
    devices = Devices(backend="tensorflow", names=names)
    config = TrainConfig.of(**{"data": DATA} | fields).with_model(image_shape)
    return config.resolve(num_examples, devices)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "alexnet"}, "--model must be small_resnet, convnet"),
        ({"epochs": 0}, "--epochs must be at least 1; received 0"),
        ({"learning_rate": 0.0}, "--lr must be above 0"),
        ({"dropout": 1.0}, "--dropout must be below 1; received 1.0"),
        ({"ema_decay": -0.1}, "--ema_decay must be at least 0"),
        ({"mixup": float("nan")}, "--mixup must be at least 0"),
        ({"sensitivity": 1.01}, "--sensitivity must be in 0..1"),
        (
            {"normalize": "data", "model": "vgg16"},
            "--normalize is only for small_resnet and convnet",
        ),
        ({"best_by": "loss"}, "--best_by must be last, val_loss or val_accuracy"),
        ({"folds": 1}, "--folds must be at least 2"),
        ({"folds": 5, "fold": -1}, "--fold must be at least 0; received -1"),
        ({"fold_splits": "train"}, "--fold, --fold_splits and --seeds need --folds"),
        ({"seeds": 2}, "--fold, --fold_splits and --seeds need --folds"),
        ({"folds": 5, "fold": 5}, r"--fold must be in 0\.\.4, received 5"),
        ({"epochs": 2, "head_epochs": 3}, "--head_epochs 3 is more than --epochs 2"),
        ({"gpu_memory": "some"}, "--gpu_memory must be growth, all or a number"),
        (
            {"model": "small_resnet", "weights": "imagenet"},
            "small_resnet has no ImageNet weights",
        ),
        ({"profile": "20,10"}, "--profile must be the first and the last step"),
    ],
)
def test_a_wrong_value_is_refused_with_the_flag_and_what_was_received(fields, message):
    with pytest.raises(UserError, match=message):
        TrainConfig.of(**fields)


def test_every_field_is_a_flag_and_arrives_with_its_type():
    config = parse(
        f"--data={DATA}", "--epochs=3", "--dropout=0.5", "--augment", "--no-jit_compile",
        "--devices=2", "--weights=none",
    )  # fmt: skip
    assert (config.input.data, config.input.epochs, config.network.dropout) == (DATA, 3, 0.5)
    devices = config.devices
    assert (config.augmentation.augment, devices.jit_compile, devices.gpus) == (True, False, 2)
    assert config.network.weights == "none"
    names = ("MobileNet_V2", "efficientnet-lite0", "ConvNet")
    models = [parse(f"--data={DATA}", f"--model={name}").network.model for name in names]
    assert models == ["mobilenetv2", "efficientnet_lite0", "convnet"]
    # Flags that are not given leave no trace, so that others can fill them.
    assert parse(f"--data={DATA}", seed=9).input.seed == 9


def test_a_resolved_configuration_has_decided_everything_that_can_be_decided():
    left_open = [name for name, value in resolve(model="vgg16").to_dict().items() if value is None]
    assert set(left_open) == {
        "cache_dir", "cache_gb", "init", "normalize", "folds", "fold_splits", "fold", "gpus",
        "cpu_devices", "profile",
    }  # fmt: skip


def batches(of_replica, of_step):
    return {"replica_batch_size": of_replica, "global_batch_size": of_step}


def network(normalize, head_units, dropout, head_epochs, trainable_layers):
    return {
        "normalize": normalize, "head_units": head_units, "dropout": dropout,
        "head_epochs": head_epochs, "trainable_layers": trainable_layers,
    }  # fmt: skip


GIVEN = {
    **network("image", 8, 0.0, 0, None), "weight_decay": 0.0, "warmup_steps": 0, "ema_decay": 0.0,
}  # fmt: skip


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
        ({"epochs": 4}, 537, 1, {"epochs": 4}),
        # A batch has at most as many images as the data.
        ({}, 5, 1, batches(5, 5)),
        ({}, 5, 2, batches(2, 4)),
        ({}, 9_999, 1, batches(32, 32)),
        ({}, 10_000, 4, batches(64, 256)),
        ({"model": "small_resnet"}, 1000, 1, network("data", 0, 0.3, 0, None)),
        ({"model": "convnet"}, 1000, 1, network("unit", 64, 0.0, 0, None)),
        ({"model": "vgg16"}, 1000, 1, network(None, 64, 0.0, 1, 4)),
        ({"model": "vgg16", "weights": "none"}, 1000, 1, network(None, 64, 0.0, 0, None)),
        ({"model": "densenet121"}, 1000, 1, network(None, 0, 0.3, 0, None)),
        (GIVEN, 1000, 1, GIVEN),
        # The decay of the average is never negative.
        ({"epochs": 1}, 5, 1, {"ema_decay": 0}),
        (
            {"scale_learning_rate": True, "epochs": 20, "learning_rate": 0.1},
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
        # What only small_resnet has.
        ((224, 224, 1), {"weights": "none"}, "small_resnet"),
        ((224, 224, 1), {"normalize": "image"}, "small_resnet"),
        ((28, 28, 1), {"model": "vgg16"}, "vgg16"),
    ],
)
def test_the_network_follows_from_the_size_of_the_images(image_shape, fields, expected):
    assert resolve(image_shape=image_shape, **fields).network.model == expected


def test_a_batch_that_does_not_suit_the_data_or_the_devices_is_refused():
    with pytest.raises(UserError, match="10 cannot be split evenly over 4 replicas"):
        resolve(num_replicas=4, global_batch_size=10)
    message = "takes 64 images, but the training split has only 10"
    with pytest.raises(UserError, match=message):
        resolve(10, replica_batch_size=64)


def test_a_run_can_be_repeated_from_its_file_with_flags_laid_over_it(tmp_path):
    config = resolve(epochs=7, seed=3)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": config.to_dict()}))
    assert parse(f"--config={path}") == parse(f"--config={tmp_path}", seed=4) == config
    assert parse(f"--config={path}", "--seed=4").input.seed == 4


def test_the_login_of_a_dataset_is_not_kept_and_can_be_given_again(tmp_path):
    url = "https://me:secret@host/data"
    config = resolve(data=url)
    text = json.dumps({"config": config.to_dict()}) + repr(config)
    assert "secret" not in text
    assert config.replace(seed=3).input.data_path.directory.opened == url
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": config.to_dict()}))
    with pytest.raises(UserError, match="expected local files, received https://host/data;"):
        parse(f"--config={url}")
    assert parse(f"--config={path}").input.data.opened == "https://host/data"
    assert parse(f"--config={path}", f"--data={url}").input.data.opened == url


@pytest.mark.parametrize(
    "text", ["no json", "{}", '{"config": {"colour": 1}}', '{"config": {"epochs": "3"}}']
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"config\.json"):
        train_config.load(path)


def test_differences_name_what_changes_learning_and_leave_out_what_does_not():
    ours = {"config": TrainConfig.of(data="x", epochs=2, gpus=2, checkpoint_seconds=5.0).to_dict()}
    theirs = {"config": TrainConfig.of(data="y", epochs=3).to_dict()}
    only = ["epochs: 3 in the folder, 2 requested"]
    assert train_config.differences(ours, theirs) == only
    # What follows from the number of epochs is not named beside it.
    ours, theirs = ({"config": resolve(epochs=epochs).to_dict()} for epochs in (2, 3))
    assert ours["config"]["ema_decay"] != theirs["config"]["ema_decay"]
    assert train_config.differences(ours, theirs) == only
