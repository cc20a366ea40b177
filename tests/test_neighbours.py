"""Copies and wrong labels among features: the search, and the audit through the command."""

import dataclasses
import json
import shutil
import zipfile

import numpy as np
import pytest
from builds import build_of
from dataset_factory import change_column, change_json
from image_files import encoded, scans_of
from pages import Page, needs_chromium, overhang

from pipelines.extract_features import FeatureOptions, prepared_features
from pipelines.shards.features import write_features
from pipelines.shards.finish import finish_dataset
from tfrecord_io.__main__ import main
from tfrecord_io.auditing import neighbours
from tfrecord_io.trunk import FACTS_NAME, Trunk

SIDE = 64


def unit_vectors(num_scans, num_channels=6, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((num_scans, num_channels))
    return neighbours.directions(vectors.astype(np.float32))


# ---- the search


def test_the_neighbours_are_the_most_similar_scans_of_other_patients():
    vectors = unit_vectors(600)  # several blocks
    patients = np.arange(600) // 3
    found = neighbours.find_neighbours(vectors, patients)
    cosines = vectors @ vectors.T
    cosines[patients[:, None] == patients] = -np.inf
    expected = np.argsort(-cosines, axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(found.rows, expected)
    nearest = np.take_along_axis(cosines, expected, 1)
    np.testing.assert_allclose(found.similarities, nearest, atol=1e-6)


def test_where_other_patients_are_few_the_rest_is_no_neighbour():
    patients = np.array([*[0] * 11, 1])
    found = neighbours.find_neighbours(unit_vectors(12), patients)
    assert np.isfinite(found.similarities).sum(1).tolist() == [1] * 11 + [10]
    assert neighbours.near_copies(found) == []
    assert neighbours.doubtful_labels(found, patients, ["CNV", "NORMAL"])[0].first == 11


def found_among(vectors):
    return neighbours.find_neighbours(neighbours.directions(vectors), np.arange(len(vectors)))


def pairs_in(hints):
    return [(hint.first, hint.second) for hint in hints]


@pytest.mark.parametrize("num_scans", [30, 300])
@pytest.mark.parametrize("num_channels", [6, 40])
def test_a_copy_stands_out_and_chance_gives_few_pairs_more(num_scans, num_channels):
    num_others = 0
    for seed in range(20):
        vectors = unit_vectors(num_scans, num_channels, seed)
        vectors[-1] = vectors[7] + 0.01 * vectors[8]
        pairs = pairs_in(neighbours.near_copies(found_among(vectors)))
        assert (7, num_scans - 1) in pairs
        num_others += len(pairs) - 1
    assert 0 < num_others / 20 < 2.5


def test_the_most_striking_copy_comes_first():
    vectors = unit_vectors(100)
    vectors[98] = vectors[1] + 0.03 * vectors[2]
    vectors[99] = vectors[5] + 0.01 * vectors[6]
    assert pairs_in(neighbours.near_copies(found_among(vectors)))[:2] == [(5, 99), (1, 98)]


@pytest.mark.parametrize("num_scans", [1, 2, 10])
def test_among_very_few_scans_nothing_stands_out(num_scans):
    found = found_among(unit_vectors(num_scans))
    assert neighbours.near_copies(found) == []
    assert neighbours.doubtful_labels(found, np.zeros(num_scans, np.int64), ["CNV"]) == []


def test_a_direction_in_which_all_scans_differ_hides_no_copy():
    vectors = np.random.default_rng(0).standard_normal((200, 20)).astype(np.float32)
    vectors[:, 0] *= 20
    vectors[199] = vectors[7]
    vectors[199, 0] += 10
    assert (7, 199) not in pairs_in(neighbours.near_copies(found_among(vectors)))
    assert not neighbours.whitened(np.ones((5, 3), np.float32)).any()  # they never vary
    white = neighbours.whitened(vectors)
    assert (7, 199) in pairs_in(neighbours.near_copies(found_among(white)))


def clusters(num_each):
    """Vectors near two directions, and the number of the direction of each."""
    places = np.repeat([0, 1], num_each)
    return np.eye(6, dtype=np.float32)[places] + 0.1 * unit_vectors(2 * num_each), places


def test_a_label_that_differs_from_those_of_all_neighbours_is_doubtful():
    vectors, labels = clusters(20)
    labels[3] = 1
    (hint,) = neighbours.doubtful_labels(found_among(vectors), labels, ["CNV", "NORMAL"])
    assert hint.first == 3
    assert labels[hint.second] == 0
    assert hint.why.startswith("10 of the 10 most similar scans of other patients are CNV")
    # No class surrounds these.
    labels[:20] = np.arange(20) % 3
    assert neighbours.doubtful_labels(found_among(vectors), labels, ["a", "b", "c"]) == []


# ---- the audit of features, through the command


def scan(seed, label):
    """A picture of 256 grey squares: few of them bright, if the label is CNV."""
    generator = np.random.default_rng(seed)
    shares = generator.dirichlet(np.full(8, 0.5)) + np.linspace(1, 0, 8)
    shares = shares if label == "CNV" else shares[::-1]
    squares = generator.choice(8, (16, 16), p=shares / shares.sum())
    return (np.kron(squares, np.ones((4, 4))) * 32 + 16).astype(np.uint8)


MIRRORED = ("train/CNV/CNV-3-1.png", "test/CNV/CNV-90-1.png")
SAVED_AGAIN = ("train/CNV/CNV-4-1.png", "test/CNV/CNV-91-1.jpeg")
SAME_PIXELS = ("train/CNV/CNV-5-1.png", "test/CNV/CNV-92-1.png")
WRONG_LABEL = "train/NORMAL/NORMAL-93-1.png"


def planted_files():
    files = {
        f"{split}/{label}/{label}-{patient}-1.png": encoded(scan(patient, label))
        for first, label in ((0, "CNV"), (40, "NORMAL"))
        for split, numbers in (("train", range(14)), ("test", range(20, 23)))
        for patient in (first + number for number in numbers)
    }
    files[MIRRORED[1]] = encoded(scan(3, "CNV")[:, ::-1])
    files[SAVED_AGAIN[1]] = encoded(scan(4, "CNV"), "JPEG", quality=90)
    files[SAME_PIXELS[1]] = files[SAME_PIXELS[0]]
    files[WRONG_LABEL] = encoded(scan(93, "CNV"))
    return files


def brightness_of(images):
    """A trunk: marks each pixel's range of brightness, so its mean is the scan's histogram."""
    return np.eye(8, dtype=np.float32)[images[..., 0] // 32]


def extract(images, output):
    """Writes the features of a dataset as the job does, with a trunk that needs no Keras."""
    shapes = {"image_shape": (SIDE, SIDE, 1), "feature_shape": (SIDE, SIDE, 8)}
    facts = Trunk(model="histogram", layer="pixels", weights="none", rest_layers=0, **shapes)
    trunk = images.parent / "trunk.keras"
    with zipfile.ZipFile(trunk, "w") as archive:
        archive.writestr(FACTS_NAME, json.dumps(dataclasses.asdict(facts)))
    options = FeatureOptions(data=str(images), trunk=trunk, output=str(output))
    with prepared_features(options) as job:
        for task in job.todo:
            write_features(job.build, task, brightness_of, job.storage.create, {"device": "none"})
        finish_dataset(job.build)
    return output


scans = scans_of(planted_files)
images = build_of("scans", f"--image_size={SIDE}", "--num_shards=2", "--variants=1")


@pytest.fixture(scope="module")
def features(images):
    return extract(images, images.parent / "features")


@pytest.fixture(scope="module")
def page(features, images):
    path = images.parent / "neighbours.html"
    assert main(["audit", str(features), "--images", str(images), "--page", str(path)]) == 0
    return path


def test_copies_and_wrong_labels_that_the_images_do_not_tell_are_found(features, capsys):
    assert main(["audit", str(features), "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    cases = {finding["code"]: finding["listed"] for finding in findings}
    paths = [{pair["first"]["path"], pair["second"]["path"]} for pair in cases["near_copies"]]
    assert paths[0] == set(MIRRORED)
    assert set(SAVED_AGAIN) not in paths
    assert set(SAME_PIXELS) not in paths
    assert cases["near_copies"][0]["similarity"] == pytest.approx(1, abs=1e-3)
    (scan,) = cases["doubtful_labels"]
    assert scan["first"]["path"] == WRONG_LABEL
    assert scan["second"]["label"] == "CNV"


def test_the_page_shows_both_scans_side_by_side_and_needs_no_network(page):
    text = page.read_text()
    parsed = Page(text)
    assert parsed.open == []
    assert not parsed.all("script")
    shown = {image["alt"].rpartition(": ")[2] for image in parsed.all("img")}
    assert shown >= {*MIRRORED, WRONG_LABEL}
    assert all(image["src"].startswith("data:image/jpeg") for image in parsed.all("img"))
    assert "most similar scans of other patients are CNV" in text


@needs_chromium
def test_on_a_phone_nothing_of_the_pages_sticks_out(page, features, tmp_path):
    assert overhang(page, tmp_path, 390) == 0
    assert overhang(features / "report.html", tmp_path, 390) == 0


def test_the_command_says_what_it_found_in_words(features, tmp_path, capsys):
    assert main(["audit", str(features)]) == 0
    text = capsys.readouterr().out
    assert "NOTE     2 pairs of scans may be cropped, mirrored or turned copies" in text
    assert "Across splits: 2. With different classes: 0." in text
    assert "WARNING  1 label stands out from those of similar scans" in text
    copy = shutil.copytree(features, tmp_path / "copy")
    change_json(copy / "manifest.json", label_kind="multi_label")
    assert main(["audit", str(copy)]) == 0
    text = capsys.readouterr().out
    assert "NOTE     Labels were not compared with those of similar scans" in text
    assert "With different labels: 0." in text


def test_wrong_usage_and_another_dataset_are_refused(features, images, tmp_path, capsys):
    other = shutil.copytree(images, tmp_path / "other")
    change_json(other / "manifest.json", fingerprint="0" * 64)
    changed = shutil.copytree(features, tmp_path / "changed")
    change_column(changed / "examples.parquet", "row", lambda rows: [row + 1 for row in rows])
    for words, code, message in (
        ((features, "--max_duplicates=0"), 2, "the limits are for images"),
        ((images, "--images", images), 2, "holds images itself"),
        ((features, "--images", other), 1, "has the fingerprint 000000000000…"),
        ((changed,), 1, "ends before its record"),
    ):
        assert main(["audit", *map(str, words)]) == code
        assert message in capsys.readouterr().err
