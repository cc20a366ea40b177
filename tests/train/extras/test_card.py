import dataclasses
import json
import re
from html import unescape

import markdown_it
import numpy as np
from answers import dataset_with
from marked_images import metrics_of

import tfrecord_io
from tfrecord_io.pages.page import markdown
from tfrecord_io.terminal.printing import printable
from train.extras.card import write_card
from train.results.sections import Result

CARD = {"model": "vgg16", "epochs": 1, "init": None, "weights": "/home/ann/w.h5"}


def test_the_card_of_a_run_has_its_figures_and_names_no_patient_and_no_path(class_run, class_data):
    card, metrics = (class_run / "export" / "README.md").read_text(), metrics_of(class_run)
    index = json.loads(re.search(r"^model-index: (.*)$", card.split("---")[1], re.MULTILINE)[1])
    (result,) = index[0]["results"]
    assert result["dataset"] == {"type": "marked", "name": "marked", "split": "test"}
    found = {each["type"]: each["value"] for each in result["metrics"]}
    assert {"accuracy", "balanced_accuracy", "ece", "urgent/auc", "auc/CNV"} < set(found)
    assert found == {name: metrics["scores"][name]["value"] for name in found}
    texts = (
        "not a medical device",
        "train (90), val (20), test (30);",
        *map(markdown, metrics["notes"]),
    )
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


#: What a person could call a class, and a program would take for more than a name.
HOSTILE = ("<img src=x onerror=alert(1)>", "[free](https://x.org)", "**Approved** device", "a|b`c`",
           "www.x.org", "line\nbreak: x\n---\n# Title", "$x$ me@x.org <!--", "\\<b>")  # fmt: skip


def test_a_card_shows_names_as_names_whatever_their_characters(class_run, class_data, tmp_path):
    manifest, metrics = tfrecord_io.Manifest.load(class_data), metrics_of(class_run)
    split = dataclasses.replace(manifest.splits["train"], label_counts=(1,) * len(HOSTILE))
    facts = {"label_names": HOSTILE, "name": HOSTILE[0], "splits": {"train": split}}
    scores = {
        name.replace("CNV", label): value
        for name, value in metrics["scores"].items()
        for label in HOSTILE
    }
    results = metrics | {"scores": scores, "notes": [f"rare: {name}" for name in HOSTILE]}
    results["label_counts"] = dict.fromkeys(HOSTILE, 1)
    results["confusion_matrix"] = np.eye(len(HOSTILE), dtype=int).tolist()
    dataset = dataset_with(dataclasses.replace(manifest, **facts))
    write_card(tmp_path, Result(dataset=dataset, config=CARD, metrics=results))
    _, front, text = (tmp_path / "README.md").read_text().split("---\n", 2)
    (index,) = json.loads(re.search(r"^model-index: (.*)$", front, re.MULTILINE)[1])
    assert index["results"][0]["dataset"]["name"] == HOSTILE[0]
    assert [link for link in ("://", "www.", "@") if link in text] == []  # which make links alone
    html = markdown_it.MarkdownIt().enable(["table", "strikethrough"]).render(text)
    page = re.sub("<code.*?</code>", "", html, flags=re.DOTALL)
    assert set(re.findall(r"<([a-z]\w*)", page)) <= {
        "h1", "h2", "p", "ul", "li", "strong", "pre",
    }  # fmt: skip
    shown = unescape(page)
    assert [name for name in HOSTILE if f"rare: {printable(name)}" not in shown] == []
    assert re.findall("<strong>.*?</strong>", page) == [
        "<strong>Intended use: research. This is not a medical device. Nobody may be diagnosed or "
        "treated by it.</strong>"
    ]


def test_a_card_without_a_result_says_so_and_tells_no_file(class_data, tmp_path):
    dataset = dataset_with(tfrecord_io.Manifest.load(class_data))
    metrics = {"split": None, "notes": []}
    write_card(tmp_path, Result(dataset=dataset, config=CARD, metrics=metrics))
    card = (tmp_path / "README.md").read_text()
    found = [text in card for text in ("It was not measured", "model-index", "/home")]
    assert found == [True, False, False]
