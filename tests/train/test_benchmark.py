import csv
import json

import pytest
from marked_images import run_script

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
    first, second = (row["images_per_second"] for row in rows)
    assert rows[1]["speedup"] == pytest.approx(second / first, abs=1e-3)
    assert rows[1]["efficiency"] == pytest.approx(second / first / 2, abs=1e-3)
    with (output / "scaling.csv").open() as file:
        assert [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)] == rows
