import json
import re

import numpy as np
import pytest
from answers import measured
from dataset_factory import bare_manifest, split_of
from marked_images import metrics_of

import tfrecord_io
from train.kinds.registry import TASKS
from train.results.card import write_card


def fields_of(card):
    """Returns the YAML fields on top of a card, whose values are JSON."""
    lines = card.split("---\n")[1].splitlines()
    return {name: json.loads(value) for name, value in (line.split(": ", 1) for line in lines)}


def test_the_card_of_a_run_has_its_figures_and_names_no_patient_and_no_path(class_run, class_data):
    card, metrics = (class_run / "export" / "README.md").read_text(), metrics_of(class_run)
    (entry,) = fields_of(card)["model-index"]
    (result,) = entry["results"]
    assert result["dataset"] == {"type": "marked", "name": "marked", "split": "test"}
    found = {each["type"]: each["value"] for each in result["metrics"]}
    assert {"accuracy", "balanced_accuracy", "ece", "urgent/auc", "auc/CNV"} < set(found)
    assert found == {name: metrics["scores"][name]["value"] for name in found}
    assert "not a medical device" in card
    assert "images of train (90), val (20), test (30);" in card
    assert [note for note in metrics["notes"] if note not in card] == []
    table = tfrecord_io.read_examples(class_data)
    private = {name for column in ("patient", "path") for name in table[column].to_pylist()}
    assert len(private) > 200
    assert [name for name in {*private, str(class_data), str(class_run)} if name in card] == []


def test_the_code_of_the_card_runs_in_its_folder(class_run, monkeypatch, capsys):
    card = (class_run / "export" / "README.md").read_text()
    monkeypatch.chdir(class_run / "export")
    exec(re.search(r"```python\n(.*?)```", card, re.DOTALL)[1], {})
    assert len(re.findall(r"\d\.\d+", capsys.readouterr().out)) == 4


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind.name)
def test_every_kind_of_label_has_a_card_that_tells_no_file(task, tmp_path):
    names = ("age",) if task.kind.is_number else ("a<b", "c: #", '"d"')
    generator, counts = np.random.default_rng(0), [5] * len(names)
    answers = generator.dirichlet([1.0] * 3, 30)[:, : len(names)].astype(np.float32)
    truths = {"number": answers[:, 0] + 1, "multi_label": answers > 0.3}
    truths = truths.get(task.kind.name, np.arange(30) % 3)
    found = measured(answers, truths, names, task) | {"split": "test", "notes": ["a note"]}
    facts = {"image_shape": (8, 9, 1), "splits": {"train": split_of(counts)}}
    manifest = bare_manifest(names, label_kind=task.kind, **facts)
    settings = {"model": "vgg16", "epochs": 1, "init": None, "weights": "/home/ann/w.h5"}
    for results in (found, {"split": None, "notes": []}):
        write_card(tmp_path, manifest, settings, results)
        card = (tmp_path / "README.md").read_text()
        fields = fields_of(card)
        assert ("pipeline_tag" in fields) == task.gives_probabilities
        assert ("model-index" in fields) == ("metrics" in fields) == ("scores" in results)
        assert ("It was not measured" in card) != ("scores" in results)
        assert "/home" not in card
        assert all(name in card for name in names)
