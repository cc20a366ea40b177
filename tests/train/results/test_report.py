import dataclasses
import functools
import re
from pathlib import Path

import numpy as np
import pytest
from answers import dataset_of, measured, predictions_of, scores_of
from dataset_factory import bare_manifest, split_of
from marked_images import OCT_NAMES, write_marked_dataset
from pages import Page, needs_chromium, require_good_page, require_shown, words
from scipy.special import softmax

from tfrecord_io.pages.page import picture
from train.data.dataset import open_dataset
from train.data.seen import Exposure
from train.kinds.classes import CLASSES
from train.kinds.words import describe
from train.results import metrics, thresholds
from train.results.charts import write_charts
from train.results.mistakes import (
    MAX_MISTAKES,
    SEEN,
    Explanation,
    ShownAnswer,
    find_mistakes,
)
from train.results.result import CrossValidationResult, EvaluationResult, RunResult

HISTORY = (
    {"epoch": 1, "loss": 1.2, "accuracy": 0.4, "val_loss": 1.3, "val_accuracy": 0.35},
    {"epoch": 2, "loss": 0.6, "accuracy": 0.8, "val_loss": 0.9, "val_accuracy": 0.7},
)


PAIRS = [str(index // 2) for index in range(80)]


def manifest_of(names, **facts):
    splits = {"train": split_of([60] * len(names)), "test": split_of([5] * len(names))}
    return bare_manifest(
        image_shape=(20, 30, 1), label_names=names, splits=splits, name="scans", **facts
    )


def mostly_right(num_classes, num_examples, seed=0):
    """Returns (probabilities, labels) that are mostly right."""
    generator = np.random.default_rng(seed)
    labels = np.arange(num_examples) % num_classes
    logits = 2.5 * np.eye(num_classes)[labels] + generator.normal(size=(num_examples, num_classes))
    return softmax(logits, -1).astype(np.float32), labels


@functools.cache
def some_answers(names, num_examples, with_patients):
    """Returns what is measured of answers that are mostly right, and mistakes."""
    probabilities, labels = mostly_right(len(names), num_examples)
    patients = [str(index // 2) for index in range(num_examples)] if with_patients else None
    found = measured(probabilities, labels, names, patients=patients, num_samples=50)
    image = np.random.default_rng(0).integers(256, size=(20, 30, 1), dtype=np.uint8)
    pictures = {SEEN: picture(image), "what mattered": picture(np.repeat(image, 3, axis=-1))}
    answers = CLASSES.mistakes(predictions_of(probabilities, labels, names), MAX_MISTAKES)
    return found, [ShownAnswer(one, pictures, f"test/{one.place}.jpeg") for one in answers]


def report_of(names=OCT_NAMES, *, num_examples=80, with_patients=True, **changes):
    """Returns what a page is rendered from."""
    found, mistakes = some_answers(tuple(names), num_examples, with_patients)
    fields = {
        "directory": Path("a run"),
        "manifest": manifest_of(names),
        "config": {"model": "convnet", "seed": 3, "bootstrap_samples": 1000},
        "metrics": found | {"split": "test", "best_epoch": 2},
        "mistakes": mistakes,
        "facts": {"Versions": {"python": "3.11.7"}},
    }
    return fields | changes


def page_of(kind=RunResult, *, manifest, **fields):
    dataset = dataclasses.replace(dataset_of(1), manifest=manifest)
    return kind(dataset=dataset, **fields).render()


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A report with everything in it."""
    made = report_of()
    (probabilities, truths), found = mostly_right(4, 80), dict(made["metrics"])
    test = predictions_of(probabilities, truths, dataset=dataset_of(80, PAIRS))
    cooled = dataclasses.replace(test, probabilities=CLASSES.cool(probabilities, 1.7))
    found["calibration"] = {"fitted_on": "val", "num_examples": 40}
    found["calibration"] |= thresholds.describe_calibration(cooled, 1.7)
    chosen = thresholds.choose_thresholds(predictions_of(*mostly_right(4, 40, seed=1)), 0.95)
    found["thresholds"] = thresholds.measure_thresholds(chosen, test, 20, 0, {"CNV": 0.02})
    charts = write_charts(tmp_path_factory.mktemp("plots"), HISTORY, found, test)
    return made | {"metrics": found, "charts": charts}


@pytest.fixture(scope="module")
def text(full):
    return page_of(**full)


# ---- the page as a page


def test_the_page_stands_alone_can_be_read_in_every_way_and_is_always_the_same(full, text):
    require_good_page(text, "png|jpeg")
    assert page_of(**full) == text


def test_the_page_tells_the_result_first_and_then_how_it_came_about(full, text):
    metrics, seen = full["metrics"], words(text)
    accuracy = metrics["scores"]["accuracy"]
    low, value, high = (f"{100 * accuracy[key]:.1f}" for key in ("low", "value", "high"))
    for phrase in (
        "On the 80 images of 40 patients of split test, the network named the right class for "
        f"{value} % ({round(80 * accuracy['value'])} of 80; 95 % interval: {low} to {high} %).",
        "would be right for 25.0 %.",
        "Of the urgent images (CNV and DME), it called",
        "divided by a temperature of 1.70, fitted on 40 images of val",
        f"and is {100 * metrics['calibration']['ece_after']:.1f} % now",
        f"{metrics['thresholds'][0]['threshold']:.3g}",
        "10 positives (few)",
        full["manifest"].fingerprint,
        "30×20 pixels, grey, in 4 classes",
        "This is not a medical device.",
        "All images come from one collection.",
        "This is one run.",
    ):
        assert phrase in seen
    assert GUESSING not in seen


MADE = {"date": "2026-11-23 08:00 UTC", "command": "train/run.py --data data/oct"}
GUESSING = "may be no better than always giving the most frequent answer"
GUESSED = measured(np.full((40, 4), 0.25, np.float32), np.arange(40) % 4, num_samples=50)


@pytest.mark.parametrize(
    ("changes", "phrases", "absent"),
    [
        ({"facts": {"Made": MADE}}, [*MADE.values()], ["href=\"data"]),
        ({"metrics": GUESSED | {"split": "test"}, "mistakes": ()}, [GUESSING], []),
        ({"metrics": GUESSED | {"split": "val"}, "mistakes": ()},
         ["of split val,", "also made its choices with these validation images"], []),
        ({"metrics": GUESSED | {"split": "val", "model": "runs/oct/export"}, "mistakes": (),
          "kind": EvaluationResult, "config": {}}, ["How well oct reads scans", "of split val,"],
         ["made its choices with", "This is one run", "before you rely on it"]),
        ({"manifest": manifest_of(OCT_NAMES, options={"variants": 2})},
         ["100 of 30×20", " train 80 20 20 20 20 "], []),
        ({"metrics": {}, "mistakes": ()},
         ["There is no result for this network", "Training and data"], []),
        ({"config": {"model": "small_resnet"}}, ["small_resnet"], ["Evaluation"]),
        ({"names": ("only",), "num_examples": 7},
         ["the network named the right class for 100.0 % (", "The network made no mistakes."], []),
        ({"names": [f"class {index:03}" for index in range(60)], "num_examples": 180,
          "with_patients": False}, ["class 059"], ["truth ↓ answer"]),
    ],
)  # fmt: skip
def test_each_kind_of_run_has_a_page_of_modest_size_that_says_so(changes, phrases, absent):
    text = page_of(**report_of(**changes))
    assert all(phrase in words(text) for phrase in phrases)
    assert not any(phrase in text for phrase in absent)
    page = Page(text)
    assert page.open == []
    assert {a["href"].removeprefix("#") for a in page.all("a")} <= {*page.ids, "metrics.json"}
    assert len(text) < 500_000


def test_mistakes_and_a_small_table_of_answers_stand_on_top(full, text):
    many = page_of(**report_of([f"class {place}" for place in range(12)], num_examples=96))
    for page, is_small in ((text, True), (many, False)):
        top, _ = page.split("<main", 1)
        assert ("Answers for the images of each class" in words(f"<body>{top}")) == is_small
        assert top.count("<img") == min(6, len(full["mistakes"])) > 0


def test_the_surest_mistakes_come_first_with_their_images_and_the_first_have_a_map(tmp_path):
    write_marked_dataset(tmp_path, num_examples={"test": 300})
    dataset = open_dataset(str(tmp_path))
    labels = dataset.stored.labels(range(300)).argmax(-1)
    probabilities = np.eye(4, dtype=np.float32)[labels]
    for place, sure in ((290, 0.9), (7, 0.8), (8, 0.7)):
        probabilities[place] = sure * np.eye(4)[(labels[place] + 1) % 4]
    a_map = Explanation("map", "", lambda image, answer: picture(image))
    found = find_mistakes(predictions_of(probabilities, labels, dataset=dataset), a_map, 2)
    assert [mistake.answer.place for mistake in found] == [290, 7, 8]
    assert [mistake.path for mistake in found] == dataset.values("path", np.array([290, 7, 8]))
    assert [list(mistake.pictures) for mistake in found] == [[SEEN, "map"]] * 2 + [[SEEN]]
    (image,), _ = dataset.stored[[7]]
    np.testing.assert_array_equal(np.asarray(found[1].pictures[SEEN]), image[..., 0])
    answer = found[0].answer
    expected = OCT_NAMES[labels[290]], OCT_NAMES[(labels[290] + 1) % 4]
    assert (answer.true, answer.predicted) == expected
    assert answer.probability == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("fields", "said", "is_claimed"),
    [
        ({"is_seen": np.ones(27)}, "27 of these images, of 9 patients, show a picture or a", False),
        ({"is_seen": np.ones(27), "is_measured": False}, "27 further images of 9 patients", True),
        ({}, "compared with these 80 images of 40 patients: it had seen no patient of", True),
        ({"claims": (), "doubts": ("there is no list",)}, "It cannot be known whether", False),
    ],
)
def test_what_was_seen_is_said_and_only_what_is_proven_is_claimed(fields, said, is_claimed):
    claims = ("no patient of the same name",)
    facts = {"is_seen": np.zeros(1), "num_patients": 9, "is_measured": True, "claims": claims}
    found = words(page_of(**report_of(exposure=Exposure(**facts | fields))))
    assert said in found
    assert (claims[0] in found) == is_claimed


def test_a_cross_validation_shows_its_folds_and_their_spread():
    made, (probabilities, labels) = report_of(kind=CrossValidationResult), mostly_right(4, 80)
    scores = {fold: scores_of(probabilities[fold::5], labels[fold::5]) for fold in range(5)}
    pooled = made["metrics"] | {"split": "train+val"} | metrics.describe_folds(scores)
    found = words(page_of(**made | {"metrics": pooled}))
    assert "In a cross-validation, each of 80 images of 40 patients" in found
    assert f"{pooled['spread']['accuracy']['std_over_folds']:.3f}" in found
    assert "This is one run." not in found


def test_names_are_text_and_never_markup_and_control_characters_are_seen():
    names = ("<img src=x onerror=alert(1)>", "$x^$ & \"'", "\x1b[31mred\x07", "NORMAL")
    made = report_of(names, directory=Path("<b>run\x1b"))
    text, printed = page_of(**made), describe(CLASSES, made["metrics"])
    assert not re.search(r"<(?!img src=\"data:)img|<b>", text)
    for shown in ("&lt;img src=x onerror=alert(1)&gt;", "\\x1b[31mred\\x07"):
        assert shown in text
    assert all(line.isprintable() for line in (*text.splitlines(), *printed.splitlines()))
    assert Page(text).open == []


# ---- in a browser


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_browser_shows_the_page_with_long_names_in_light_and_dark(full, tmp_path, width, dark):
    names = ("a" * 60, "CNV", "b " * 40, "NORMAL")
    page = page_of(**full | {"directory": Path("x" * 80), "manifest": manifest_of(names)})
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    require_shown(tmp_path / "report.html", tmp_path, width, dark)
