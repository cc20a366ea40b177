import json

import numpy as np
import planted_scans as planted
import pyarrow as pa
from builds import build_of
from image_files import scans_of

from tfrecord_io import __main__ as command_line
from tfrecord_io.auditing import shortcuts
from tfrecord_io.format.groups import group_images

clean_tree = scans_of(planted.clean_files)
clean = build_of("clean_tree", "--image_size=32")


def test_the_command_ends_with_1_over_its_limit_and_names_what_gives_the_class_away(clean, capsys):
    given = "audit", str(clean), "--json"
    assert command_line.main([*given, "--max_shortcut_gain=1"]) == 0
    measured = json.loads(capsys.readouterr().out)["measures"]["shortcuts"]
    gain = round(measured["accuracy"] - measured["chance"], 4)
    assert command_line.main([*given, f"--max_shortcut_gain={gain - 0.1}"]) == 1
    (line,) = json.loads(capsys.readouterr().out)["violations"]
    assert line == f"--max_shortcut_gain {gain - 0.1}: found {gain}"
    for limit in ("-2", "nan"):
        assert command_line.main([*given, f"--max_shortcut_gain={limit}"]) == 2
        assert "must be at least" in capsys.readouterr().err


def measured(table, labels):
    return shortcuts.measure(table, labels, group_images(table))


def test_a_side_fact_that_goes_with_the_class_is_measured_and_named():
    labels = np.arange(400) % 2
    sizes = np.where(labels == 1, 512, np.where(np.arange(400) % 4 == 0, 768, 640))
    columns = {"width": sizes, "height": np.full(400, 496)}
    found = measured(pa.table({"patient": [str(n // 4) for n in range(400)], **columns}), labels)
    assert found.accuracy == found.low == 1
    assert found.chance == 0.5
    assert found.by_signal == {"original size": 1.0}
    assert ("original size", "512×496", 1, 200) in found.giveaways


def test_volumes_of_unknown_patients_tell_no_more_than_chance():
    generator = np.random.default_rng(0)
    studies = np.repeat(np.arange(24), 9)
    labels = (np.arange(24) % 2)[generator.permutation(24)][studies]
    brightness = generator.normal(60, 10, 24)[studies] + generator.normal(size=216)
    table = pa.table({"study": studies.astype(str), "brightness": brightness})
    found = measured(table, labels)
    assert found.low < found.chance < found.high
    # Frame by frame, the brightness of a volume gives its label away.
    alone = measured(table.drop_columns("study"), labels)
    assert alone.low > alone.chance


def test_what_only_names_the_patient_is_not_counted_as_telling_the_class():
    labels = np.repeat(np.arange(40) % 2, 25)
    patients = np.repeat(np.arange(40), 25)
    table = pa.table({"patient": patients.astype(str), "quantization": patients})
    found = measured(table, labels)
    assert found.accuracy < 0.7
    # One class or no side fact gives no figure.
    assert measured(table, np.zeros_like(labels)) is None
    assert measured(table.select(["patient"]), labels) is None
