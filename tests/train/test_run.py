"""The command as a user and a scheduler see it: exit codes, messages, signals."""

import fcntl
import random
import re
import shutil
import signal
import sys
import time

import pytest
from builds import run_command, started, wait_until
from marked_images import (
    ALL_ON,
    SAVING_EACH_STEP,
    arrays_of,
    check_equal,
    environment,
    flags,
    history_of,
    marked_data,
    metrics_of,
    run_python,
    run_script,
)
from s3_server import BUCKET

from train import run
from train.extras.bucket import working_folder

FLAGS = (
    *flags(**ALL_ON), "--epochs=3", "--replica_batch_size=8", "--seed=1", "--deterministic",
    "--bootstrap_samples=5",
)  # fmt: skip


data = marked_data({"train": 200, "val": 10, "test": 12})


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """The folder of a run that saved its state after each step, and that nothing disturbed."""
    workdir = tmp_path_factory.mktemp("run") / "run"
    result = run_python(SAVING_EACH_STEP, "--data", data, "--workdir", workdir, *FLAGS)
    assert result.returncode == 0, result.stderr
    return workdir


def saving_each_step(data, workdir):
    data, workdir = f"--data={data}", f"--workdir={workdir}"
    return [sys.executable, "-c", SAVING_EACH_STEP, data, workdir, *FLAGS]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs=1"], "--workdir"),
        (["--workdir=x", "--image_size=64"], "--image_size"),
        (["--workdir=x"], "error: --data is missing"),
        (["--workdir=x", "--data=x", "--epochs=0"], "error: --epochs must be at least 1; received"),
        (["--workdir=x", "--config=nowhere.json"], "error: nowhere.json does not exist"),
        (["--workdir=x", "--data=x", "--cache_dir=y"], "error: --cache_dir: only what a URL gives"),
        (["--workdir=x", "--data=x"], "error: KERAS_BACKEND=torch is not installed, or not supp"),
        (["--workdir=x", "--init=no"], "error: no does not exist; give a run, or its config.json"),
    ],
)
def test_a_users_mistake_ends_with_code_2_and_one_line(
    arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    if "KERAS_BACKEND" in message:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(SystemExit) as raised:
        raise SystemExit(run.main(arguments))
    assert raised.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_a_wrong_path_is_printed_before_anything_heavy_is_imported():
    code = (
        "import sys; from train import benchmark, evaluate, run; data = '--data=/nowhere'; "
        "codes = [run.main([data, '--workdir=x']), evaluate.main([data, '--model=x']), "
        "benchmark.main([data, '--steps=1'])]; "
        "print(codes, {'keras', 'tensorflow', 'sklearn'} & set(sys.modules))"
    )
    done = run_command([sys.executable, "-c", code])
    assert done.stdout == "[2, 2, 2] set()\n"
    told = "error: /nowhere/manifest.json is missing: the folder does not exist\n"
    assert done.stderr == told * 3


@pytest.mark.slow
def test_the_console_is_clean(data, tmp_path):
    result = run_script("run", "--data", data, "--workdir", tmp_path / "run", *FLAGS)
    assert (result.returncode, result.stderr) == (0, "")
    # A line for each epoch, then for each stage, and where the results are.
    names = r"^(convnet|epoch|temperature|export|evaluation|page|The model)\b"
    stages = ["temperature", "export", "evaluation", "page", "The model"]
    found = re.findall(names, result.stdout, re.MULTILINE)
    assert found == ["convnet", "epoch", "epoch", "epoch", *stages]


def check_same(workdir, other):
    ours, theirs = (arrays_of(folder / "checkpoint.npz") for folder in (workdir, other))
    assert len(ours) > 20
    check_equal(ours, theirs)
    assert (workdir / "predictions.csv").read_text() == (other / "predictions.csv").read_text()
    names = ("loss", "accuracy", "val_loss", "val_accuracy", "step")
    rows, same = (
        [[row[name] for name in names] for row in history_of(run)] for run in (workdir, other)
    )
    assert rows == same


@pytest.mark.slow
def test_killed_at_two_moments_it_ends_with_the_weights_of_an_undisturbed_run(
    data, finished, tmp_path
):
    words = saving_each_step(data, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoint.npz"

    def saved():
        return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0

    for number, delay in ((signal.SIGTERM, 0.13), (signal.SIGKILL, 0.05)):
        before = saved()
        with started(words, env=environment()) as process:
            assert wait_until(lambda: saved() != before, process, limit_s=600)  # noqa: B023
            time.sleep(delay)
            process.send_signal(number)
            said, _ = process.communicate(timeout=600)
        assert process.returncode in (128 + number, -number)
        assert process.returncode < 0 or "stopped by SIGTERM after step" in said
    assert run_command(words, environment(), timeout=600).returncode == 0
    check_same(tmp_path / "run", finished)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_five_times_in_a_bucket_without_its_disk_it_ends_as_an_undisturbed_run(
    data, finished, s3, tmp_path
):
    url, disk, moment = f"s3://{BUCKET}/killed", tmp_path / "disk", random.Random(0)
    words = saving_each_step(data, url)
    for _ in range(5):
        disk.mkdir()
        num_left = 100 - moment.randint(1, 30)  # it makes more requests until it is complete
        with (
            s3.failing("", times=100),
            started(words, env=environment(TMPDIR=str(disk))) as process,
        ):
            wait_until(lambda: len(s3.faults) <= num_left, process, limit_s=600)  # noqa: B023
            process.kill()
            process.wait()
        assert process.returncode == -signal.SIGKILL
        shutil.rmtree(disk)
    with s3.failing("403 Forbidden", after=12):
        assert run_command(words, environment(), timeout=600).returncode == 1
    ends = "going on ", f"report.html are in {url}", f"run in {url} is complete; nothing"
    for phrases in (ends[:2], ends[2:]):
        done = run_command(words, environment(), timeout=600)
        assert (done.returncode, all(phrase in done.stdout for phrase in phrases)) == (0, True)
    with working_folder(url) as workdir:
        check_same(workdir.path, finished)
        assert metrics_of(workdir.path) == metrics_of(finished)


@pytest.mark.slow
def test_a_full_disk_ends_with_a_message_and_the_same_command_continues(data, finished, tmp_path):
    words = saving_each_step(data, tmp_path / "run")
    # No file above 100 kB can be written, which is like a full disk.
    limited = ["bash", "-c", 'ulimit -f 97 && exec "$@"', "bash", *words]
    full = run_command(limited, environment(), timeout=600)
    assert full.returncode == 1
    message = f"error: the run in {tmp_path / 'run'} cannot go on: [Errno 27] File too large; "
    assert message in full.stderr
    result = run_command(words, environment(), timeout=600)
    assert result.returncode == 0, result.stderr
    check_same(tmp_path / "run", finished)


def test_a_second_process_in_the_same_folder_is_refused(data, tmp_path, capsys):
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run.main([f"--data={data}", f"--workdir={tmp_path}", *flags(**ALL_ON)]) == 2
    assert f"is training in {tmp_path}" in capsys.readouterr().err
