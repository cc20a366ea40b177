"""A machine with JAX alone: everything the trainer does, without an import of TensorFlow."""

import importlib.util
import json

import numpy as np
import pytest
from marked_images import (
    ALL_ON,
    arrays_of,
    check_equal,
    flags,
    history_of,
    marked_data,
    run_on_jax,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed"),
]

SETTINGS = ALL_ON | {"epochs": 3, "replica_batch_size": 8, "bootstrap_samples": 20}

# A machine where TensorFlow is not installed: nothing finds it.
WITHOUT_TENSORFLOW = """
import importlib.machinery, json, os, signal, sys

def without_tensorflow(name, *more, find=importlib.machinery.PathFinder.find_spec):
    return None if name.partition(".")[0] == "tensorflow" else find(name, *more)

importlib.machinery.PathFinder.find_spec = without_tensorflow
"""

PROGRAM = (
    WITHOUT_TENSORFLOW
    + """
from train import benchmark, evaluate, predict, run
from train.training import monitors

data, out, *flags = sys.argv[1:]
real_add, steps = monitors.EpochMeter.add, []

def train(name):
    return run.main(["--data", data, "--workdir", f"{out}/{name}", *flags])

def stop_in_step_5(*given, **named):
    steps.append(None)
    if len(steps) == 5:
        os.kill(os.getpid(), signal.SIGTERM)
    real_add(*given, **named)

# The same command again and again: undisturbed, stopped at a step, and gone on with.
codes = [train("whole")]
monitors.EpochMeter.add = stop_in_step_5
codes.append(train("resumed"))
monitors.EpochMeter.add = real_add
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
)


data = marked_data({"train": 30, "val": 10, "test": 12})


@pytest.fixture(scope="module")
def out(data, tmp_path_factory):
    import PIL.Image

    path = tmp_path_factory.mktemp("jax_runs")
    pixels = np.random.default_rng(0).integers(256, size=(12, 12), dtype=np.uint8)
    PIL.Image.fromarray(pixels).save(path / "scan.png")
    result = run_on_jax(PROGRAM, data, path, *flags(**SETTINGS))
    (path / "stdout.txt").write_text(result.stdout)
    return path


def test_every_command_ends_well_and_none_imports_tensorflow(out):
    printed = (out / "stdout.txt").read_text()
    facts = json.loads(printed.splitlines()[-1])
    assert facts == {"codes": [0, 143, 0, 0, 0, 0], "tensorflow": False}
    assert "no saved_model" in printed
    written = json.loads((out / "whole" / "config.json").read_text())
    assert written["backend"] == "jax"
    assert set(written["versions"]) == {"python", "keras", "jax", "numpy"}


def test_a_stopped_run_goes_on_to_the_weights_of_an_undisturbed_one(out):
    runs = [out / "resumed", out / "whole"]
    ours, theirs = ([(row["loss"], row["val_loss"]) for row in history_of(run)] for run in runs)
    assert ours == theirs
    check_equal(*(arrays_of(run / "best.npz", "model/") for run in runs))


def test_a_backend_that_is_not_supported_or_not_installed_ends_with_code_2(data, tmp_path):
    program = (
        WITHOUT_TENSORFLOW
        + """
from train import run

for backend in ("torch", "tensorflow"):
    os.environ["KERAS_BACKEND"] = backend
    print(run.main(["--data", sys.argv[1], "--workdir", sys.argv[2]]))
"""
    )
    result = run_on_jax(program, data, tmp_path / "run")
    assert result.stdout.split() == ["2", "2"]
    assert "KERAS_BACKEND=torch is not installed, or not supported" in result.stderr
    assert "[train]'" in result.stderr
