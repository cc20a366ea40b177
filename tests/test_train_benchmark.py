import csv
import json

import pytest
from marked_images import run_script, write_marked_dataset

from train import benchmark
from train.benchmark import Speed


def test_speed_up_and_efficiency_are_against_the_first_row():
    speeds = [
        Speed(
            replicas=replicas,
            images_per_second=speed,
            images_per_second_on_device=2 * speed,
            input_wait_share=0.5,
        )
        for replicas, speed in ((1, 100.0), (4, 300.0))
    ]
    first, second = benchmark.table(speeds)
    assert (first["speedup"], first["efficiency"], first["input_ratio"]) == (1, 1, 0.5)
    assert (second["speedup"], second["efficiency"]) == (3, 0.75)


@pytest.mark.parametrize("replicas", ["0", "1,x", "", "1,,2"])
def test_wrong_numbers_of_replicas_end_with_code_2(replicas, capsys):
    assert benchmark.main([f"--replicas={replicas}", "--data=x"]) == 2
    assert "--replicas must be numbers such as 1,2,4" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_writes_table_and_plot_for_each_number_of_replicas(tmp_path):
    data, output = tmp_path / "data", tmp_path / "scaling"
    write_marked_dataset(data, num_examples={"train": 40})
    result = run_script(
        "benchmark", "--data", data, "--replicas=1,2", "--cpu_devices=2", "--steps=3",
        "--rounds=2", "--replica_batch_size=8", "--output", output,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0].split() == list(benchmark.COLUMNS)
    rows = json.loads((output / "scaling.json").read_text())
    assert [row["replicas"] for row in rows] == [1, 2]
    for row in rows:
        assert row["images_per_second"] > 0
        assert row["images_per_second_on_device"] > 0
    with (output / "scaling.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2
    assert (output / "scaling.png").stat().st_size > 5000
