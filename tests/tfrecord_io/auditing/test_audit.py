import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import planted_scans as planted
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builds import ROOT, build_here, build_of, read_csv, rows_of
from dataset_factory import bare_manifest, change_column, cut_shards
from image_files import encoded, jpeg, scans_of, write_tree
from PIL import Image

from tfrecord_io import __main__ as command_line
from tfrecord_io.auditing import audit, twins, verify
from tfrecord_io.format.manifest import Manifest, Split

SIZE = "--image_size=96"
SAMPLE = ROOT.parent / "shared" / "data" / "kermany2018-sample.zip"


clean_tree = scans_of(planted.clean_files)
clean = build_of("clean_tree", SIZE)
flawed_tree = scans_of(planted.planted_files)
flawed = build_of("flawed_tree", SIZE)
dropped = build_of("flawed_tree", SIZE, "--leaks=drop", "--num_shards=3")


def finding(directory, code):
    """Returns the finding of a code that is not `good`, or None."""
    found = [f for f in audit.audit(directory).findings if f.code == code and f.severity != "good"]
    return found[0] if found else None


@pytest.fixture
def build(tmp_path):
    """Builds a dataset of files by name."""
    return lambda files, *flags: build_here(
        write_tree(tmp_path / "scans", files), tmp_path / "out", *flags
    )


def near_pairs(directory):
    listed = finding(directory, "near_duplicates").listed
    return {frozenset((pair["first"]["path"], pair["second"]["path"])) for pair in listed}


# ---- what is planted is found


def test_pictures_under_two_labels_or_in_two_files_are_found(flawed):
    for code, names, facts in (
        ("label_conflict", planted.CONFLICT, ("CNV, NORMAL", "train", "yes")),
        ("duplicates", planted.SAME_FILE, ("NORMAL", "train", "yes")),
        ("picture_leak", planted.SAME_PIXELS, ("CNV", "train, val", "no, same pixels")),
    ):
        pairs = {
            frozenset((row["first"], row["again"])): row for row in finding(flawed, code).listed
        }
        row = pairs[frozenset(names)]
        assert (row["labels"], row["splits"], row["same file"]) == facts
        assert len(pairs) == 1 + (code == "duplicates")


def test_of_clean_scans_no_leak_and_no_copy_is_reported(clean):
    result = audit.audit(clean)
    good = {f.code for f in result.findings if f.severity == "good"}
    assert good >= {"patient_leak", "duplicates", "near_duplicates"}
    assert not [f for f in result.findings if f.severity == "problem"]
    assert result.measures["near_duplicate_pairs"] == 0


BLANK = {
    f"{split}/CNV/CNV-{n}-1.png": encoded(np.full((80, 80), level, np.uint8))
    for n, (split, level) in enumerate([("train", 0), ("test", 10), ("train", 20), ("test", 0)])
}


def test_a_class_that_a_split_lacks_is_named(build):
    names = "train/A/a.png", "train/B/b.png", "test/A/c.png"
    out = build({name: jpeg(number) for number, name in enumerate(names)})
    assert finding(out, "class_missing").title == "1 class is missing from test"


def test_pictures_of_one_colour_are_no_copies_of_each_other(build):
    out = build(BLANK, SIZE, "--layout=split/class")
    assert finding(out, "blank").count == 4
    assert finding(out, "one_class").severity == "problem"
    assert finding(out, "near_duplicates") is None
    assert len({row["group"] for row in rows_of(out)}) == 4


@pytest.mark.slow
@pytest.mark.skipif(not SAMPLE.exists(), reason=f"{SAMPLE.name}, real scans, is not here")
def test_what_is_wrong_with_the_real_sample_is_found(tmp_path):
    out = build_here(SAMPLE, tmp_path / "out", SIZE)
    result = audit.audit(out, most_listed=None)
    (leak,) = [found for found in result.findings if found.code == "patient_leak"]
    shared = [tuple(split for split in ("train", "val", "test") if row[split])
              for row in leak.listed]  # fmt: skip
    assert Counter(shared) == {("train", "val"): 9, ("train", "test"): 27}
    measures = result.measures
    assert measures["near_duplicate_pairs"] == measures["duplicate_images"] == 0
    assert Manifest.load(out).counts["copies"] == 632
    given_away = {"fact": "original size", "value": "512×512", "images": 43, "all of them": "DME"}
    assert given_away in [
        case for found in Manifest.load(out).audit["findings"] for case in found["listed"]
    ]


# ---- what leaves copies out


def copies_in(directory, path):
    assert command_line.main(["audit", str(directory), f"--output={path}"]) == 0
    return {row["path"]: (row["copy_of"], row["kind"]) for row in read_csv(path)}


def test_copies_are_written_as_a_table_that_a_build_leaves_out(flawed, flawed_tree, tmp_path):
    table = tmp_path / "copies.csv"
    found = copies_in(flawed, table)
    saved, brightened = planted.SAVED_AGAIN, planted.BRIGHTENED
    assert found == {
        # The copy in test stays, else that in val; of contradicting labels none.
        planted.SAME_PIXELS[1]: (planted.SAME_PIXELS[0], "same pixels"),
        max(planted.SAME_FILE, key=found.__contains__): (
            min(planted.SAME_FILE, key=found.__contains__), "same pixels"
        ),
        planted.CONFLICT[0]: (planted.CONFLICT[1], "same pixels, another label"),
        planted.CONFLICT[1]: (planted.CONFLICT[0], "same pixels, another label"),
        saved[1]: (saved[0], "near duplicate"),
        brightened[1]: (brightened[0], "near duplicate"),
    }  # fmt: skip
    output = build_here(flawed_tree, tmp_path / "out", SIZE, f"--exclude={table}")
    assert Manifest.load(output).counts["excluded"] == len(found)
    assert copies_in(output, table) == {}


# ---- what is dropped


def test_dropping_leaves_no_patient_in_two_splits(dropped, tmp_path):
    rows = {row["path"]: row["reason"] for row in read_csv(dropped / "dropped.csv")}
    # Patient 2 is in test, so all of its images leave train, the one with a copy in val too.
    assert rows[planted.SAME_PIXELS[1]] == "patient_in_test"
    assert Manifest.load(dropped).counts["dropped"] == {"patient_in_test": 3}
    assert command_line.main(["audit", str(dropped), "--max_leaked_patients=0"]) == 0
    assert verify.verify(dropped) == []
    table = shutil.copytree(dropped, tmp_path / "out") / "dropped.csv"
    table.write_text(table.read_text().replace("patient_in_test", "missing_file"))
    (found,) = verify.verify(table.parent)
    assert found.startswith("dropped.csv: has the reasons {")


def test_leaks_of_small_pictures_cannot_be_ruled_out(clean_tree, tmp_path, capsys):
    out = build_here(clean_tree, tmp_path / "out", "--image_size=28")
    for limit in ("max_leaked_pictures", "max_label_conflicts"):
        assert command_line.main(["audit", str(out), f"--{limit}=9"]) == 1
        said = f"FAILED   --{limit} 9: near duplicates were not looked for"
        assert said in capsys.readouterr().out


# ---- the command


def test_the_command_ends_with_1_over_a_limit_and_with_0_under_it(
    flawed, clean, capsys, monkeypatch
):
    assert command_line.main(["audit", str(flawed)]) == 0
    assert command_line.main(["audit", str(flawed), "--max_leaked_patients=1"]) == 0
    assert command_line.main(["audit", str(flawed), "--max_leaked_patients=0"]) == 1
    assert "FAILED   --max_leaked_patients 0: found 1" in capsys.readouterr().out
    names = "leaked_patients", "leaked_pictures", "duplicates", "label_conflicts"
    limits = [f"--max_{name}=0" for name in names]
    assert command_line.main(["audit", str(flawed), *limits]) == 1
    assert capsys.readouterr().out.count("FAILED") == 4
    assert command_line.main(["audit", str(flawed), "--json", "--max_duplicates=2"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["violations"] == ["--max_duplicates 2: found 3"]
    assert content["measures"]["duplicate_images"] == 3
    assert command_line.main(["audit", str(clean), *limits]) == 0
    assert command_line.main(["audit", str(clean), "--max_duplicates=-1"]) == 2
    assert "must be at least" in capsys.readouterr().err
    monkeypatch.setattr(twins, "MAX_CHECKED", 1)
    assert command_line.main(["audit", str(flawed), "--max_leaked_pictures=9"]) == 1
    assert "not all pairs were compared" in capsys.readouterr().out


def with_value(name, value):
    """Returns what writes another value into the first row of a column."""
    return lambda path: change_column(path, name, lambda old: [value, *old[1:]])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "examples.parquet"),
        (lambda path: pq.write_table(pq.read_table(path)[1:], path), "was changed or is damaged"),
        (with_value("split", "holdout"), "the split or label 'holdout'"),
        (with_value("shard", "../beside.tfrecord"), "does not have one row for each of the "),
        (cut_shards, ".tfrecord ends before its record"),
    ],
)
def test_a_dataset_that_cannot_be_audited_is_an_error_that_says_why(
    flawed, tmp_path, capsys, damage, message
):
    out = shutil.copytree(flawed, tmp_path / "out")
    damage(out / "examples.parquet")
    assert command_line.main(["audit", str(out)]) == 1
    assert message in capsys.readouterr().err


# ---- who is whose twin


def test_near_duplicates_of_any_exact_copy_are_across():
    near = (twins.NearPair(0, 1, 0.99),)
    found = twins.Twins(groups=np.array([0, 1, 0, 2]), is_blank=np.zeros(4, bool), near=near)
    assert [group.tolist() for group in found.exact_groups()] == [[0, 2]]
    for codes, across in (
        ([0, 0, 0, 1], []),
        ([0, 1, 0, 0], [(0, 1)]),
        ([0, 0, 1, 0], [(2, 1)]),
        ([1, 0, 0, 0], [(0, 1)]),
    ):
        assert [pair[:2] for pair in found.near_across(np.array(codes))] == across


def framed(data):
    """A scan in the fixed frame of a screen."""
    noise = np.random.default_rng(0).integers(256, size=(24, 24), dtype=np.uint8)
    screen = Image.fromarray(noise).resize((192, 192), Image.Resampling.NEAREST)
    screen.paste(Image.fromarray(planted.pixels(data)).resize((96, 96)), (48, 48))
    return encoded(screen)


def test_a_frame_that_all_pictures_have_makes_no_copies_of_them(build):
    files = {}
    for patient in range(1, 41):
        label, split = planted.LABELS[patient % 2], "test" if patient % 3 else "train"
        name = f"{split}/{label}/{label}-{patient}-1.png"
        files[name] = framed(planted.scan(label, patient, 1))
    copy = "test/NORMAL/NORMAL-90-1.jpeg"
    files[copy] = planted.saved_again(files["train/NORMAL/NORMAL-3-1.png"], 80)
    assert near_pairs(build(files, SIZE)) == {frozenset({copy, "train/NORMAL/NORMAL-3-1.png"})}


def test_copies_of_another_shape_are_found_between_their_bars(build):
    files, copies = {}, set()
    for patient in range(1, 9):
        label = planted.LABELS[patient % 2]
        names = f"train/{label}/{label}-{patient}-1.png", f"test/{label}/{label}-9{patient}-1.png"
        image = Image.fromarray(planted.pixels(planted.scan(label, patient, 1)))
        shapes = image, image.resize((256, 200), Image.Resampling.BILINEAR)
        files |= dict(zip(names, map(encoded, shapes), strict=True))
        copies.add(frozenset(names))
    assert near_pairs(build(files, "--image_size=160", "--fit=pad")) == copies


def test_a_chain_of_too_many_likes_is_reported_and_joins_nobody():
    size, rows = 101, np.arange(101)
    near = tuple(twins.NearPair(a, a + 1, 0.99) for a in range(size - 1))
    found = twins.Twins(groups=rows, is_blank=rows < 0, near=near, min_similarity=0.9)
    names = [str(row) for row in rows]
    columns = {"patient": names, "path": names, "width": rows, "height": rows, "row": rows}
    columns["shape"] = np.ones(size)
    same = {"split": ["train"] * size, "label": ["a"] * size, "shard": ["0"] * size}
    split = Split(label_counts=(size,), shards=())
    dataset = bare_manifest(image_shape=(96, 96, 1), label_names=["a"], splits={"train": split})
    result = audit.audit_examples(pa.table(columns | same), found.believed(rows), dataset)
    (chain,) = [one for one in result.findings if one.code == "near_chains"]
    assert chain.count == 1
    assert "more than 100 images" in chain.detail
    assert not result.measures["near_duplicates_complete"]
