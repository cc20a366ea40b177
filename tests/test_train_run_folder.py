"""Tests of train/run_folder.py."""

import json
import random

import power_cut

from train import run_folder


def test_a_complete_run_has_all_its_files_whatever_a_power_cut_takes(tmp_path):
    disk = power_cut.Disk(tmp_path, random.Random(0))
    export = tmp_path / "export" / "saved_model"
    complete = {}

    def look() -> None:
        if (tmp_path / run_folder.METRICS_NAME).exists():
            complete.setdefault("files", disk.sure())

    export.mkdir(parents=True)
    (export / "saved_model.pb").write_bytes(b"graph")
    (tmp_path / "report.html").write_text("<html>")
    with disk.watched(look):
        run_folder.write_metrics(tmp_path, {"steps": 3})
    disk.close()

    assert json.loads((tmp_path / "metrics.json").read_text()) == {"steps": 3}
    assert complete["files"].keys() == {"export/saved_model/saved_model.pb", "report.html"}
