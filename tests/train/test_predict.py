import csv
import io
import json
import shutil
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from builds import build_here, read_csv, rows_of
from dicom_files import dicom_file
from image_files import encoded, grey_pixels, write_tree
from marked_images import (
    OCT_NAMES,
    edited_run,
    export_untrained,
    predicted,
    without_saved_model,
)
from PIL import Image
from tiff_files import tiff_file

from tfrecord_io.decoding import dicom
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.terminal.errors import UserError
from train import predict
from train.data.seen import Seen
from train.results.classifier import (
    load_classifier,
    load_classifiers,
    predict_files,
    predict_images,
)

SHAPE = (24, 20, 1)

#: Those of `files` that are images.
FILES = ("a.jpeg", "b.png", "c.png")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with without_saved_model():
        export_untrained(folder, SHAPE, model="convnet")
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Scans of another size than the network's, grey and colour; one file that is no image."""
    folder = tmp_path_factory.mktemp("files")
    generator = np.random.default_rng(0)
    for name, shape in (("a.jpeg", (50, 64)), ("b.png", (31, 17, 3)), ("c.png", (24, 20))):
        Image.fromarray(generator.integers(256, size=shape, dtype=np.uint8)).save(folder / name)
    (folder / "d.jpeg").write_bytes(b"no image")
    (folder / ".DS_Store").write_bytes(b"a folder's icon")
    return folder


def answer(capsys, run, *inputs, code=0, **flags):
    """Runs the command on files; returns what it wrote, `out` and `err`."""
    words = [f"--{name}={value}" for name, value in ({"model": run} | flags).items()]
    assert predict.main([*words, "--input", *map(str, inputs)]) == code
    return capsys.readouterr()


def test_each_file_gets_probabilities_or_its_reason_in_order(run_folder, files):
    paths = [files / name for name in ("d.jpeg", "a.jpeg", "b.png", "a.jpeg")]
    bad, *good = predict_files(load_classifier(run_folder), paths, batch_size=2)
    assert (bad.probabilities, bad.reject.split(":")[0]) == (None, "not_an_image")
    assert [prediction.path for prediction in good] == paths[1:]
    first, other, again = (prediction.probabilities for prediction in good)
    assert first.sum() == pytest.approx(1)
    np.testing.assert_allclose(again, first, atol=1e-6)
    assert np.abs(other - first).max() > 1e-5


def test_shapes_that_the_training_images_lack_are_warned_of(run_folder, files, tmp_path, capsys):
    for shapes, is_warned in (([0.5484, 0.8333], True), ([0.55, 0.8, 1.3], False)):
        run = edited_run(run_folder, tmp_path / str(is_warned), shapes=shapes)
        said = answer(capsys, run, *(files / name for name in FILES)).err
        assert ("some images are 1.3 times as wide as high" in said) == is_warned


def test_the_command_prints_csv_json_and_a_table(run_folder, files, tmp_path, capsys):
    rows = predicted(capsys, run_folder, files, code=1)
    assert [Path(row["path"]).name for row in rows] == [*FILES, "d.jpeg"]
    assert sum(float(rows[0][name]) for name in OCT_NAMES) == pytest.approx(1, abs=1e-5)
    assert rows[3]["reject"].startswith("not_an_image")
    captured = answer(capsys, run_folder / "export", files, code=1, format="json")
    assert "d.jpeg: not_an_image" in captured.err
    row, *_ = json.loads(captured.out)
    assert row["predicted"] == max(row["probabilities"], key=row["probabilities"].get)
    header, first, *_, last = answer(capsys, run_folder, files, code=1).out.splitlines()
    assert header.split() == list(rows[0])
    assert row["predicted"] in first
    assert "not_an_image" in last
    # Files that are refused for one reason are one line.
    text = write_tree(tmp_path, {f"{number}.png": b"text" for number in range(7)})
    assert answer(capsys, run_folder, text, code=1).err.count("not_an_image") == 1


def test_exported_thresholds_are_one_column_more(run_folder, files, tmp_path, capsys):
    run = shutil.copytree(run_folder, tmp_path / "run")
    shared = {"wanted_sensitivity": 0.95, "val": {"num_positives": 20}}
    entries = [
        {"view": "urgent", "labels": ["CNV", "DME"], "threshold": 0.0} | shared,
        {"view": "NORMAL", "labels": ["NORMAL"], "threshold": 0.0} | shared,
        {"view": "DRUSEN", "labels": ["DRUSEN"], "threshold": 1.0} | shared,
    ]
    path = run / "export" / "thresholds.json"
    path.write_text(json.dumps(entries))
    rows = predicted(capsys, run, files, code=1)
    assert list(rows[0]) == ["path", "predicted", *OCT_NAMES, "reject", "above_threshold"]
    # The likeliest class stays the answer.
    assert rows[0]["predicted"] == max(OCT_NAMES, key=lambda name: float(rows[0][name]))
    assert [row["above_threshold"] for row in rows] == ["urgent|NORMAL"] * 3 + [""]
    path.write_text(json.dumps(entries[2:]))
    _, first, *_ = answer(capsys, run, files, code=1).out.splitlines()
    assert first.endswith("none")


def test_by_patient_the_mean_of_the_images_answers(run_folder, files, tmp_path, capsys):
    tags = {(0x0010, 0x0020, "LO"): "17"}
    scans = {f"p1-{place}.png": (files / name).read_bytes() for place, name in enumerate(FILES)}
    scans |= {"p2-0.png": b"no image", "x.png": encoded(grey_pixels(1))}
    scans |= {f"b/{number}": dicom_file(grey_pixels(number), tags) for number in range(2)}
    folder = write_tree(tmp_path / "scans", scans)
    images = {row["path"]: row for row in predicted(capsys, run_folder, folder, code=1)}
    words = {"format": "csv", "by": "patient", "patient_regex": "^(p[0-9])-"}
    said = answer(capsys, run_folder, folder, code=1, **words)
    rows = {row["patient"]: row for row in csv.DictReader(io.StringIO(said.out))}
    code = dicom.patient_code("17")
    shown = {name: row["images"] for name, row in rows.items()}
    assert shown == {code: "2", "p1": "3", "p2": "0", str(folder / "x.png"): "1"}
    assert list(rows["p1"])[:4] == ["patient", "images", "path", "predicted"]
    assert rows["p2"]["reject"].startswith("not_an_image")
    for patient, start in ((code, "b/"), ("p1", "p1-")):
        row, of_patient = rows[patient], [images[str(folder / n)] for n in scans if start in n]
        table = np.array([[float(image[name]) for name in OCT_NAMES] for image in of_patient])
        found = [float(row[name]) for name in OCT_NAMES]
        np.testing.assert_allclose(found, table.mean(0), atol=2e-6)
        assert row["predicted"] == OCT_NAMES[np.argmax(found)]
        assert row["path"] == of_patient[table[:, np.argmax(found)].argmax()]["path"]
    assert f"warning: no patient is found in {folder / 'x.png'};" in said.err
    # The default is the pattern of the build, which seen.parquet records.
    run = shutil.copytree(run_folder, tmp_path / "run")
    Seen(origin={"patients": '["^(p[0-9])-", null, false]'}).write(run / "seen.parquet")
    assert answer(capsys, run, folder, code=1, format="csv", by="patient").out == said.out


def test_several_runs_of_the_same_classes_and_the_folds_of_one_answer_by_their_mean(
    run_folder, files, tmp_path
):
    folds = tmp_path / "folds"
    for fold in range(2):
        shutil.copytree(run_folder, folds / f"fold-{fold}")
    other = keras.saving.load_model(run_folder / "export" / "model.keras")
    other.set_weights([weights + 0.1 for weights in other.get_weights()])
    other.save(folds / "fold-1" / "export" / "model.keras")
    one, two, both = (
        next(predict_files(load_classifiers([run]), [files / "a.jpeg"])).probabilities
        for run in (run_folder, folds / "fold-1", folds)
    )
    assert not np.allclose(one, two)
    assert np.allclose(both, (one + two) / 2)
    with pytest.raises(UserError, match="each run once"):
        load_classifiers([run_folder, run_folder])
    unlike = edited_run(run_folder, tmp_path / "unlike", label_names=OCT_NAMES[::-1])
    with pytest.raises(UserError, match="cannot be averaged"):
        load_classifiers([run_folder, unlike])


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("a.jpeg", {"model": "nowhere"}, "--run nowhere: expected the folder of a finished run"),
        ("a.jpeg", {"by": "patient", "patient_regex": "xy"}, "needs a group"),
        ("a.jpeg", {"by": "patient"}, "no seen.parquet that says how the build found patients"),
        ("a.jpeg", {"by": "patient", "patient_regex": "x(y)"}, "'x(y)' finds no patient in"),
        ("a.jpeg", {"patient_regex": "(x)"}, "add --by patient"),
        ("a.jpeg", {"model": "data"}, "--run data: expected"),
        ("nowhere", {}, "--input"),
        ("data", {}, "evaluate.py --run"),
        ("a.jpeg", {"occlusion": "export/model.keras"}, "cannot be a folder: File exists"),
    ],
)
def test_wrong_usage_ends_with_code_2(run_folder, files, name, flags, message, capsys, monkeypatch):
    monkeypatch.chdir(run_folder)
    files = run_folder if name == "data" else files
    assert message in answer(capsys, run_folder, files / name, code=2, **flags).err


def runs_code(images):
    """A layer that is a Python function, which would run when the model is built or answers."""
    Path("executed").touch()
    return images[:, 0, 0]


@pytest.mark.parametrize("attack", ["lambda", "a class of any module", "depth"])
def test_a_hostile_model_is_refused_without_running_anything(
    attack, run_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run_folder / "export", tmp_path / "export")
    path = tmp_path / "export" / "model.keras"
    if attack == "lambda":
        layers = [keras.Input(SHAPE, dtype="uint8"), keras.layers.Lambda(runs_code)]
        keras.Sequential(layers).save(path)
        Path("executed").unlink()
    else:
        config = {"module": "os", "class_name": "system", "config": {"command": "touch executed"}}
        text = "[" * 100_000 if attack == "depth" else json.dumps(config)
        with zipfile.ZipFile(run_folder / "export" / "model.keras") as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (members | {"config.json": text}).items():
                archive.writestr(name, content)
    with pytest.raises(UserError, match=r"model\.keras cannot be loaded"):
        load_classifier(tmp_path)
    assert not Path("executed").exists()


PREPROCESSING = Preprocessing(height=24, width=20).to_dict()


@pytest.mark.parametrize(
    "facts",
    [
        {"preprocessing": {**PREPROCESSING, "width": 21}},
        {"preprocessing": {**PREPROCESSING, "dtype": "uint16"}},
        {"preprocessing": [1]},
        {"label_names": [1, 2, 3, 4]},
        {"label_names": ["CNV"]},
        {"shapes": ["wide"]},
    ],
)
def test_facts_that_are_not_those_of_the_model_are_refused(facts, run_folder, tmp_path):
    with pytest.raises(UserError, match=r"preprocessing\.json"):
        load_classifier(edited_run(run_folder, tmp_path / "run", **facts))


def test_each_image_has_a_map_whatever_its_name(run_folder, files, tmp_path, capsys):
    long, maps = tmp_path / f"{'é' * 120}.png", tmp_path / "maps"
    shutil.copy(files / "b.png", long)
    answer(capsys, run_folder, files / "a.jpeg", long, occlusion=maps)
    first, second = sorted(maps.iterdir())
    assert first.name == "0000-a.png"
    assert second.name.startswith("0001-é")
    with Image.open(first) as picture:
        assert (picture.size, picture.mode) == (SHAPE[1::-1], "RGB")


def test_a_name_that_would_steer_the_terminal_is_printed_escaped(
    run_folder, files, tmp_path, capsys
):
    odd = tmp_path / "a\x1b]0;title\x07\nb.png"
    shutil.copy(files / "c.png", odd)
    (tmp_path / "\x1b[2Jbad.png").write_bytes(b"no image")
    captured = answer(capsys, run_folder, tmp_path, code=1)
    lines = captured.out.splitlines() + captured.err.splitlines()
    assert all(line.isprintable() for line in lines)
    assert any("a\\x1b]0;title\\x07\\nb.png" in line for line in lines)
    # For a program, a name is what it is.
    assert {row["path"] for row in predicted(capsys, run_folder, odd)} == {str(odd)}


@pytest.mark.slow
def test_every_frame_and_page_that_the_build_accepts_is_predicted(run_folder, tmp_path, capsys):
    """The same names, pixels and rejects as in a build of the same folder."""
    pages = [grey_pixels(seed) for seed in range(3)]
    volume = dicom_file(np.stack(pages))
    files = {
        "CNV/volume": volume,
        "CNV/volume.png": volume,  # a name that promises one picture
        "CNV/cut": volume[:-10],
        "CNV/scan.dcm": dicom_file(pages[0]),
        "DME/one.tif": tiff_file(pages[:1]),
        "DME/three.tif": tiff_file(pages),
        "DME/picture.png": encoded(pages[0]),
    }
    folder = write_tree(tmp_path / "in", files)
    built = build_here(folder, tmp_path / "out", "--image_size=24x20", "--max_reject_fraction=0.5")
    rows = rows_of(built)
    rejects = {row["path"]: row["reason"] for row in read_csv(built / "rejects.csv")}
    assert rejects == {
        "CNV/volume.png": "not_an_image",
        "CNV/cut#frame-3": "truncated",
        "DME/three.tif": "multiple_frames",
    }

    capsys.readouterr()
    flags = {"occlusion": tmp_path / "maps", "format": "json"}
    written = answer(capsys, run_folder, folder, code=1, **flags).out
    found = {row["path"].removeprefix(f"{folder}/"): row for row in json.loads(written)}
    assert found.keys() == rejects.keys() | {row["path"] for row in rows}
    for name, reason in rejects.items():
        assert found[name]["reject"].startswith(reason)
    assert len(list((tmp_path / "maps").iterdir())) == len(rows)

    classifier = load_classifier(run_folder)
    for row in rows:
        mapped = MappedDataset(built, row["split"])
        place = mapped.keys(range(len(mapped))).index(row["key"])
        (expected,) = predict_images(classifier, mapped[[place]][0])
        probabilities = list(found[row["path"]]["probabilities"].values())
        np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    assert len(rows) == 8


def test_a_model_of_dicom_files_says_what_it_needs_to_read_them(
    run_folder, tmp_path, monkeypatch, capsys
):
    folder = edited_run(run_folder, tmp_path / "run", decoder=dicom.codec_versions())
    (tmp_path / "scan.dcm").write_bytes(dicom_file(np.zeros((24, 20), np.uint8)))
    answer(capsys, folder, tmp_path / "scan.dcm")
    monkeypatch.setattr(dicom, "PACKAGES", (*dicom.PACKAGES, "a-missing-codec"))
    dicom.import_pydicom.cache_clear()  # A process looks for the codecs once.
    answer(capsys, folder, tmp_path / "scan.dcm", code=2)
