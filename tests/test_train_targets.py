"""Training on a grade for each image."""

import csv
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marked_images import KERAS_ARRAY_WARNING, QUICK, flags, write_marked_dataset
from sklearn import metrics as sk_metrics

from tfrecord_io.label_kinds import CLASSES, GRADES
from train import evaluate, run, scores

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)

SETTINGS = {
    **QUICK, "epochs": 2, "replica_batch_size": 16, "strategy": "single", "learning_rate": 0.01,
    "bootstrap_samples": 20,
}  # fmt: skip


def train(data, workdir, **fields):
    return run.main([f"--data={data}", f"--workdir={workdir}", *flags(**SETTINGS | fields)])


# ---- grades


def scores_of(truths, answers, num_grades=4):
    names = tuple(f"grade {place}" for place in range(num_grades))
    probabilities = np.eye(num_grades)[answers] * 0.97 + 0.01
    return scores.scores(scores.GradeScorer(probabilities, np.array(truths), names))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=40))
def test_kappa_is_that_of_scikit_learn_and_undefined_if_there_is_only_one_grade(pairs):
    truths, answers = map(list, zip(*pairs, strict=True))
    found = scores_of(truths, answers)[scores.KAPPA]
    if set(truths) == set(answers) and len(set(truths)) == 1:
        assert np.isnan(found)
    else:
        expected = sk_metrics.cohen_kappa_score(
            truths, answers, weights="quadratic", labels=range(4)
        )
        assert found == pytest.approx(expected)


def test_a_mistake_of_one_grade_costs_less_than_one_of_three():
    near, far = (scores_of([0, 1, 2, 3], answers) for answers in ([1, 1, 2, 3], [3, 1, 2, 3]))
    assert near["accuracy"] == far["accuracy"]
    assert near[scores.KAPPA] > far[scores.KAPPA]


def test_a_draw_of_the_bootstrap_has_the_kappa_of_the_examples_that_it_repeats():
    generator = np.random.default_rng(0)
    truths, counts = generator.integers(0, 3, 30), generator.integers(0, 3, 30)
    probabilities = generator.dirichlet(np.ones(3), 30)
    names = ("low", "mid", "high")
    weighted = scores.GradeScorer(probabilities, truths, names).score(counts[None].astype(float))
    copies = np.repeat(probabilities, counts, axis=0), np.repeat(truths, counts)
    repeated = scores.scores(scores.GradeScorer(*copies, names))
    assert weighted[scores.KAPPA] == pytest.approx([repeated[scores.KAPPA]])


def test_grades_are_learned_as_classes_and_judged_by_kappa_too(tmp_path, capsys):
    names = ("none", "mild", "severe")
    for name, kind in (("data", GRADES), ("classes", CLASSES)):
        num_examples = {"train": 60, "val": 15, "test": 24}
        write_marked_dataset(
            tmp_path / name, num_examples=num_examples, label_names=names, label_kind=kind
        )
    assert train(tmp_path / "data", tmp_path / "run") == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["label_kind"] == "grade"
    kappa = metrics["scores"]["quadratic_kappa"]
    with (tmp_path / "run" / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = sk_metrics.cohen_kappa_score(
        *([names.index(row[column]) for row in rows] for column in ("label", "predicted")),
        weights="quadratic",
    )
    assert kappa["value"] == pytest.approx(expected, abs=1e-6)
    assert kappa["low"] < kappa["value"] < kappa["high"]
    assert list(metrics["label_counts"]) == list(names)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "quadratic weighted kappa" in page
    assert "Kappa: the agreement" in page
    exported = json.loads((tmp_path / "run" / "export" / "preprocessing.json").read_text())
    assert exported["label_kind"] == "grade"
    # Classes of the same names have no order, so the model's grades do not fit them.
    arguments = [f"--model={tmp_path / 'run'}", f"--data={tmp_path / 'classes'}"]
    assert evaluate.main(arguments) == 2
    assert "learned the kind grade" in capsys.readouterr().err
