"""A machine with JAX alone: everything the trainer does, without an import of TensorFlow."""

import importlib.util
import json

import numpy as np
import pytest
from marked_images import ALL_ON, arrays_of, check_equal, flags, history_of, marked_data, run_on_jax
from PIL import Image

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed"),
]

SETTINGS = ALL_ON | {"epochs": 3, "replica_batch_size": 8, "bootstrap_samples": 20}

PROGRAM = """
import importlib.machinery, json, os, signal, sys

def without_tensorflow(name, *more, find=importlib.machinery.PathFinder.find_spec):
    return None if name.partition(".")[0] == "tensorflow" else find(name, *more)

importlib.machinery.PathFinder.find_spec = without_tensorflow
from train import benchmark, evaluate, predict, run
from train.training.steps import JaxSteps

data, out, *flags = sys.argv[1:]
real_step, steps = JaxSteps.train, []

def train(name):
    return run.main(["--data", data, "--workdir", f"{out}/{name}", *flags])

def stop_in_step_5(*given):
    steps.append(None)
    if len(steps) == 5:
        os.kill(os.getpid(), signal.SIGTERM)
    return real_step(*given)

# The same command again and again: undisturbed, stopped at a step, and gone on with.
codes = [train("whole")]
JaxSteps.train = stop_in_step_5
codes.append(train("resumed"))
JaxSteps.train = real_step
model, measured = ["--model", out + "/whole"], ["--data", data]
codes += [
    train("resumed"),
    predict.main([*model, "--input", out + "/scan.png", "--format=json"]),
    evaluate.main([*model, *measured, "--bootstrap_samples=20"]),
    benchmark.main([*measured, "--steps=2", "--rounds=1", "--output", out + "/scaling",
                    "--model=convnet", "--replica_batch_size=8"]),
]
print(json.dumps({"codes": codes, "tensorflow": "tensorflow" in sys.modules}))
"""


data = marked_data({"train": 30, "val": 10, "test": 12})


def test_every_command_ends_well_without_tensorflow_and_a_stopped_run_ends_as_an_undisturbed_one(
    data, tmp_path
):
    pixels = np.random.default_rng(0).integers(256, size=(12, 12), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "scan.png")
    printed = run_on_jax(PROGRAM, data, tmp_path, *flags(**SETTINGS)).stdout
    facts = json.loads(printed.splitlines()[-1])
    assert facts == {"codes": [0, 143, 0, 0, 0, 0], "tensorflow": False}
    assert "no saved_model" in printed
    runs = [tmp_path / "whole", tmp_path / "resumed"]
    written = json.loads((runs[0] / "config.json").read_text())
    assert written["backend"] == "jax"
    assert set(written["versions"]) == {"python", "keras", "jax", "numpy"}
    ours, theirs = ([(row["loss"], row["val_loss"]) for row in history_of(run)] for run in runs)
    assert ours == theirs
    check_equal(*(arrays_of(run / "best.npz", "model/") for run in runs))
