"""A table of labels from COCO, VOC and YOLO: which classes occur in an image."""

import json
import re

import pytest
from builds import csv_rows

from pipelines.listing.label_table import read_table
from pipelines.listing.options import ListingOptions
from tfrecord_io.__main__ import main

COCO = {
    "images": [{"id": 7, "file_name": "a.png"}, {"id": 8, "file_name": "b.png"}],
    "categories": [{"id": 1, "name": "mass"}, {"id": 3, "name": "cyst"}],
    "annotations": [{"image_id": 7, "category_id": k} for k in (3, 1, 3)],
}
VOC = (
    "<annotation><filename>a.png</filename><object><name>mass</name><part><name>rim</name></part>"
    "</object><object><name>cyst</name></object></annotation>"
)


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


@pytest.mark.parametrize(
    ("files", "rows"),
    [
        (
            {"train/_annotations.coco.json": json.dumps(COCO), "train/a.png": ""},
            [["b.png", "none", "train"], ["train/a.png", "cyst|mass", "train"]],
        ),
        ({"annotations/all.json": json.dumps(COCO)}, [["a.png", "cyst|mass"], ["b.png", "none"]]),
        (
            {"Annotations/a.xml": VOC, "JPEGImages/a.png": ""},
            [["JPEGImages/a.png", "cyst|mass"]],
        ),
        *(
            (
                {"data.yaml": f"nc: 2\n{names}", "valid/labels/a.txt": "1 .5 .5 .1 .1\n0 0 0 1 1",
                 "valid/labels/b.txt": ""},
                [["valid/images/a", "cyst|mass", "valid"], ["valid/images/b", "none", "valid"]],
            )
            for names in ("names: ['mass', 'cyst']\n", "names:\n- mass\n- cyst\n",
                          "names:\n  0: mass\n  1: cyst", "names:\n  0: mass  # wet\n  1: cyst",
                          "names: {0: mass, 1: 'cyst'}", "names: [mass,\n  cyst]  # two",
                          "names:\n  - \"mass\"\n  - cyst # dry")
        ),
        # As in COCO, a picture without annotations is `none`; one that was not annotated is absent.
        ({"data.yaml": "names: [mass, cyst]", "images/train/a.jpg": "", "images/train/b.jpg": "",
          "images/test/c.jpg": "", "labels/train/a.txt": "1 0 0 1 1\n0 0 0 1 1"},
         [["images/train/a", "cyst|mass", "train"], ["images/train/b", "none", "train"]]),
        ({"labels/classes.txt": "mass\ncyst", "labels/a.txt": "1 0 0 1 1\n0 0 0 1 1"},
         [["images/a", "cyst|mass"]]),
        ({"data.yaml": """names: ['CNV, active', "Best's", no]""",
          "labels/a.txt": "0 0 0 1 1\n1 0 0 1 1\n2 0 0 1 1"},
         [["images/a", "Best's|CNV, active|no"]]),
        # A class of two Unicode forms is one.
        ({"all.json": json.dumps(COCO).replace("mass", "d\xe9me").replace("cyst", "de\u0301me")},
         [["a.png", "d\xe9me"], ["b.png", "none"]]),
    ],
)  # fmt: skip
def test_a_row_names_the_classes_that_occur_in_an_image(tmp_path, files, rows):
    output, folder = tmp_path / "labels.csv", write(tmp_path / "in", files)
    assert main(["labels_from", str(folder), f"--output={output}"]) == 0
    assert csv_rows(output) == rows
    read = read_table(ListingOptions(labels=output, label_separator="|")).table.label_names
    assert {*read} == {name for row in rows for name in row[1].split("|")} - {"none"}


@pytest.mark.parametrize(
    ("files", "message"),
    [({"a.txt": ""}, "has no annotations"),
     ({"a.xml": "<annotation>"}, "in/a.xml: expected annotations in VOC, received no element"),
     ({"data.yaml": "names: [a]", "labels/a.txt": "3 0 0 1 1"},
      "in/labels/a.txt: .* the code '3' of the image images/a; known are 0"),
     ({"data.yaml": "names: [a]", "labels/a.txt": "x 0 0 1 1"}, "labels/a.txt: .* image images/a"),
     ({"data.yaml": "names: [a", "labels/a.txt": "0 0 0 1 1"}, "in/data.yaml: expected names"),
     ({"data.yaml": "names: [a]", "b.yml": "names: [b]", "labels/a.txt": ""}, "data.yaml: .*other"),
     ({"data.yaml": "names: [a]", "classes.txt": "b", "labels/a.txt": ""}, "classes.txt: .*other"),
     ({"classes.txt": "a\n\nb", "labels/a.txt": "1 0 0 1 1"}, "classes.txt: .*without a name"),
     ({"a.json": json.dumps(COCO).replace('"image_id": 7', '"image_id": 555')},
      "in/a.json: .* the image_id 555 of annotation; known are 7, 8"),
     ({"a.json": json.dumps(COCO).replace('"category_id": 1', '"category_id": 5')},
      "in/a.json: .* the category_id 5 of the image a.png; known are 1, 3"),
     *(({"a.json": json.dumps(COCO).replace(*change)}, f"in/a.json: .* the {told}")
       for change, told in {('"id": 8', '"id": 7'): "file_name 'b.png' with the id 7",
                            ('"id": 3', '"id": 1'): "name 'cyst' with the id 1",
                            ('"cyst"', "5"): "name 5", ('"a.png"', "5"): "file_name 5"}.items()),
     ({"a.xml": VOC, "b.xml": VOC}, "in/b.xml: .* the filename a.png, which a.xml has, too"),
     ({"a.json": "{"}, "in/a.json: expected annotations in COCO"),
     ({"a.json": json.dumps(COCO).replace("mass", "a|b")}, "rename it")],
)  # fmt: skip
def test_annotations_that_cannot_be_a_table_are_refused(tmp_path, capsys, files, message):
    folder = write(tmp_path / "in", files)
    assert main(["labels_from", str(folder), f"--output={tmp_path / 'labels.csv'}"]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_the_table_is_a_new_csv(tmp_path, capsys):
    folder = write(tmp_path / "in", {"a.xml": VOC})
    (there := tmp_path / "there.csv").write_text("mine")
    for output in (there, tmp_path / "new.xlsx", tmp_path):
        assert main(["labels_from", str(folder), f"--output={output}"]) == 2
        assert f"{output} must be a new .csv file" in capsys.readouterr().err
    assert there.read_text() == "mine"
