import json
import re

from marked_images import metrics_of

import tfrecord_io
from train.results.card import write_card


def test_the_card_of_a_run_has_its_figures_and_names_no_patient_and_no_path(class_run, class_data):
    card, metrics = (class_run / "export" / "README.md").read_text(), metrics_of(class_run)
    index = json.loads(re.search(r"^model-index: (.*)$", card.split("---")[1], re.MULTILINE)[1])
    (result,) = index[0]["results"]
    assert result["dataset"] == {"type": "marked", "name": "marked", "split": "test"}
    found = {each["type"]: each["value"] for each in result["metrics"]}
    assert {"accuracy", "balanced_accuracy", "ece", "urgent/auc", "auc/CNV"} < set(found)
    assert found == {name: metrics["scores"][name]["value"] for name in found}
    texts = ("not a medical device", "train (90), val (20), test (30);", *metrics["notes"])
    assert [text for text in texts if text not in card] == []
    table = tfrecord_io.read_examples(class_data)
    private = {name for column in ("patient", "path") for name in table[column].to_pylist()}
    assert len(private) > 200
    assert [name for name in {*private, str(class_data), str(class_run)} if name in card] == []


def test_the_code_of_the_card_runs_in_its_folder(class_run, monkeypatch, capsys):
    card = (class_run / "export" / "README.md").read_text()
    monkeypatch.chdir(class_run / "export")
    exec(re.search(r"```python\n(.*?)```", card, re.DOTALL)[1], {})
    assert len(re.findall(r"\d\.\d+", capsys.readouterr().out)) == 4


def test_a_card_without_a_result_says_so_and_tells_no_file(class_data, tmp_path):
    settings = {"model": "vgg16", "epochs": 1, "init": None, "weights": "/home/ann/w.h5"}
    manifest = tfrecord_io.Manifest.load(class_data)
    write_card(tmp_path, manifest, settings, {"split": None, "notes": []})
    card = (tmp_path / "README.md").read_text()
    found = [text in card for text in ("It was not measured", "model-index", "/home")]
    assert found == [True, False, False]
