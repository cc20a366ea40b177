import csv
import json

import pytest
from marked_images import run_script

from tfrecord_io.terminal.errors import UserError
from train import benchmark


@pytest.mark.parametrize("replicas", ["0", "1,x", "1,,2", "1,99"])
def test_wrong_numbers_of_replicas_are_refused_before_any_is_measured(
    class_data, tmp_path, capsys, replicas
):
    words = [f"--data={class_data}", f"--replicas={replicas}", f"--output={tmp_path / 'out'}"]
    assert benchmark.main(words) == 2
    message = "--devices 99: there are" if "99" in replicas else "--replicas: must be numbers such"
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_each_row_is_against_the_first_and_those_before_a_failure_are_kept(
    class_data, tmp_path, monkeypatch, capsys
):
    def measure_two(config, replicas, options):
        if replicas == 8:
            raise UserError("the device went away")
        speed = {1: 100.0, 4: 300.0}[replicas]
        return dict.fromkeys([*benchmark.COLUMNS][1:5], speed) | {"replicas": replicas}

    monkeypatch.setattr(benchmark, "measure", measure_two)
    monkeypatch.setattr("train.machine.devices.configure_devices", lambda options: None)
    words = [f"--data={class_data}", "--replicas=1,4,8", f"--output={tmp_path}"]
    assert benchmark.main(words) == 2
    assert "the device went away" in capsys.readouterr().err
    _, row = json.loads((tmp_path / "scaling.json").read_text())
    assert (row["replicas"], row["speedup"], row["efficiency"]) == (4, 3, 0.75)


@pytest.mark.slow
def test_the_command_writes_a_table_for_each_number_of_replicas(class_data, tmp_path):
    output = tmp_path / "scaling"
    result = run_script(
        "benchmark", "--data", class_data, "--output", output, "--cpu_devices=2", "--rounds=2",
        "--replicas=1,2", "--steps=3", "--replica_batch_size=8", "--model=convnet",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0].split() == list(benchmark.COLUMNS)
    rows = json.loads((output / "scaling.json").read_text())
    assert [row["replicas"] for row in rows] == [1, 2]
    assert all(row["images_per_second"] > 0 for row in rows)
    with (output / "scaling.csv").open() as file:
        assert [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)] == rows
