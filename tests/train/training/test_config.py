import argparse
import json

import pytest

from tfrecord_io.terminal.errors import UserError
from train.training import config as train_config
from train.training.config import TrainConfig

#: A dataset whose manifest is not read before the run.
DATA = "s3://bucket/data"


def parse(*argv, **defaults):
    parser = argparse.ArgumentParser()
    train_config.add_arguments(parser)
    parser.add_argument("--config")
    return train_config.from_arguments(parser.parse_args(argv), **defaults)


def test_a_run_can_be_repeated_from_its_file_with_flags_laid_over_it(tmp_path):
    config = TrainConfig.of(data=DATA, epochs=7, seed=3)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": config.to_dict()}))
    assert parse(f"--config={path}") == config
    # Flags go before the file, and the file before defaults.
    assert parse(f"--config={tmp_path}", "--epochs=8", seed=4) == config.replace(epochs=8)


@pytest.mark.parametrize(
    "text", ["no json", "{}", '{"config": {"colour": 1}}', '{"config": {"epochs": "3"}}']
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"config\.json"):
        train_config.load(path)


def test_differences_name_what_changes_learning_and_leave_out_what_does_not():
    ours = {"config": TrainConfig.of(data="x", epochs=2, gpus=2, bootstrap_samples=5).to_dict()}
    theirs = {"config": TrainConfig.of(data="y", epochs=3).to_dict()}
    only = ["epochs: 3 in the folder, 2 requested"]
    assert train_config.differences(ours, theirs) == only
    # What follows from the number of epochs is not named beside it.
    ours["config"]["ema_decay"] = 0.5
    assert train_config.differences(ours, theirs) == only
