"""Datasets of several labels an image, from the table to the audit."""

import json

import numpy as np
import pytest
from builds import rows_of, run_build_here, write_csv
from image_files import png, write_tree

import tfrecord_io
from tfrecord_io.auditing import audit

NAMES = ("mass", "fluid", "scar")


def build(source, output, *flags):
    return run_build_here(source, output, "--name=heart", "--image_size=64", *flags)


#: Image k has mass if k is even, fluid if 3 divides it; none has a scar but the first.
ROWS = [
    {"path": f"{k}.png", "patient": k // 2, "mass": int(k % 2 == 0),
     "fluid": int(k % 3 == 0), "scar": int(k == 0)}
    for k in range(24)
]  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    write_csv(folder / "table.csv", ROWS)
    return write_tree(folder / "scans", {row["path"]: png(k) for k, row in enumerate(ROWS)})


@pytest.fixture(scope="module")
def findings(source, tmp_path_factory):
    output = tmp_path_factory.mktemp("findings") / "out"
    flags = f"--labels={source.parent / 'table.csv'}", f"--label_columns={','.join(NAMES)}"
    more = "--splits=patient", "--split_fractions=train=0.6,test=0.4", "--variants=1"
    assert build(source, output, *flags, *more) == 0
    return output


def test_manifest_table_and_records_have_the_labels_of_each_image(findings):
    content = json.loads((findings / "manifest.json").read_text())
    assert content["format_version"] == 2
    assert content["label_kind"] == content["options"]["label_kind"] == "multi_label"
    assert content["label_names"] == content["options"]["classes"] == list(NAMES)
    manifest, table, found = tfrecord_io.Manifest.load(findings), rows_of(findings), {}
    assert tfrecord_io.Manifest.from_json(manifest.to_json()).to_json() == manifest.to_json()
    expected = {row["path"]: [float(row[name]) for name in NAMES] for row in ROWS}
    for split, part in manifest.splits.items():
        paths = [row["path"] for row in table if row["split"] == split]
        assert part.label_counts == tuple(np.sum([expected[path] for path in paths], axis=0))
        for _, labels, keys in tfrecord_io.make_batches(
            findings, split=split, batch_size=5, shuffle=False, with_keys=True
        ):
            found |= zip((bytes(key).decode() for key in keys), labels.tolist(), strict=True)
    assert {row["path"] for row in table} == expected.keys()
    assert found == {row["key"]: expected[row["path"]] for row in table}


def test_the_audit_looks_at_each_label_for_itself(findings):
    found = audit.audit(findings)
    assert found.measures["shortcuts"]["predicted"].removeprefix("label ") in NAMES
    assert found.measures["shortcuts"]["chance"] == 0.5
    assert "class" not in " ".join(f.title for f in found.findings)
