"""`--variants K` through the whole build: the ledger, the keys, the checks."""

from builds import build_here, build_of, rows_of
from dataset_factory import pixels_of
from image_files import jpeg, scan_tree, scans_of, write_zip

from tfrecord_io import Manifest
from tfrecord_io.decoding import augment
from tfrecord_io.format.schema import image_key

SCANS = scan_tree({"train": 5, "val": 1, "test": 2}, classes=("CNV", "NORMAL"))
scans = scans_of(lambda: SCANS | {"train/CNV/CNV-1-1.jpeg": b"no image at all"}, "scans.zip")
built = build_of(
    "scans", "--variants=3", "--num_shards=4", "--max_reject_fraction=0.1", "--fit=stretch"
)


def test_only_the_train_split_has_variants_which_the_ledger_does_not_count(built):
    by_path: dict[tuple[str, str], list[int]] = {}
    for row in rows_of(built):
        by_path.setdefault((row["split"], row["path"]), []).append(row["variant"])
    assert len(by_path) == 16
    for (split, _), variants in by_path.items():
        assert sorted(variants) == ([0, 1, 2, 3] if split == "train" else [0])
    train = [row["variant"] for row in rows_of(built) if row["split"] == "train"]
    assert train != sorted(train)  # they are shuffled
    found = Manifest.load(built)
    counts = found.counts
    assert (counts["examples"], counts["variants"], counts["rejects"]) == (10 * 4 + 2 + 4, 30, 1)
    assert found.options["augmentation"] == augment.RECIPE
    assert counts["files"] == counts["examples"] - counts["variants"] + counts["rejects"] == 17


def test_a_variant_is_made_of_its_original_by_its_own_key(built):
    rows, pixels = rows_of(built), pixels_of(built)
    originals = {row["path"]: pixels[row["key"]] for row in rows if row["variant"] == 0}
    for row in rows:
        path = augment.variant_path(row["path"], row["variant"])
        assert row["key"] == image_key(path)
        if row["variant"]:
            original = originals[row["path"]].tobytes()
            expected = augment.vary(original, (8, 8, 1), row["key"], (0, 0, 8, 8))
            assert pixels[row["key"]].tobytes() == expected


def test_a_file_named_like_a_variant_has_a_key_of_its_own(tmp_path):
    first = "train/CNV/a.jpeg"
    names = [first, f"{first}#variant-1", f"{first}#variant-0", f"{first}#variant-1#variant-2"]
    names.append("train/DME/b.jpeg")
    scans = write_zip(tmp_path / "a.zip", {name: jpeg(seed) for seed, name in enumerate(names)})
    keys = [row["key"] for row in rows_of(build_here(scans, tmp_path / "out", "--variants=2"))]
    assert len(set(keys)) == len(keys) == 3 * len(names)
    plain = {row["key"] for row in rows_of(build_here(scans, tmp_path / "plain"))}
    assert plain == {image_key(name) for name in names}
