"""`--reuse OLD`: the bytes of a build without it, with pixels that are copied."""

import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from azure_server import CONTAINER
from builds import (
    build_here,
    files_of,
    prepare,
    rows_of,
    run_build,
    run_build_here,
    shards_of,
    write_csv,
)
from dataset_factory import change_column, change_json, flip, write_table
from dicom_files import dicom_file
from image_files import encoded, grey_pixels, jpeg, png, write_tree, write_zip
from PIL import Image
from source_files import upload

from pipelines import errors
from pipelines.shards.write import TaskWriter
from tfrecord_io.format.manifest import Manifest
from tfrecord_io.format.schema import FOOTER_LENGTH, HEADER_LENGTH, masked_crc32c

FLAGS = ("--num_shards=3", "--max_reject_fraction=0.9", "--fit=stretch")


def two_pages(number):
    pages = [Image.fromarray(grey_pixels(number + place)) for place in range(2)]
    return encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:])


def scans(numbers, label="CNV"):
    return {f"train/{label}/{label}-{n}-1.jpeg": jpeg(n) for n in numbers}


#: What the earlier dataset has: 17 images whose files have one picture.
FIRST = {
    **scans(range(10)),
    **scans(range(10, 14), "NORMAL"),
    "train/CNV/a.png": png(20),
    "train/CNV/b.tif": encoded(Image.fromarray(grey_pixels(21)), "TIFF"),
    "train/CNV/c.dcm": dicom_file(grey_pixels(22)),
    "train/CNV/pages.tif": two_pages(23),
    "train/CNV/broken.jpeg": b"?",
}
#: A later state: files are gone, new, renamed, changed, in another class, split and twice.
LATER = {
    **{name: data for name, data in FIRST.items() if not name.endswith(("-0-1.jpeg", "-1-1.jpeg"))},
    **scans(range(30, 36), "DME"),
    "test/DME/renamed.jpeg": FIRST["train/CNV/CNV-0-1.jpeg"],
    "test/NORMAL/relabelled.jpeg": FIRST["train/CNV/CNV-1-1.jpeg"],
    "train/CNV/again.jpeg": FIRST["train/CNV/CNV-2-1.jpeg"],
    "train/CNV/CNV-3-1.jpeg": jpeg(99),
}


def pair(folder, *flags, old_flags=None, first=FIRST, later=LATER):
    """Returns an old dataset, the source of a new one, and how it is without the old one."""
    old = build_here(
        write_zip(folder / "first.zip", first),
        folder / "old",
        *FLAGS,
        *(flags if old_flags is None else old_flags),
    )
    source = write_zip(folder / "later.zip", later)
    return old, source, build_here(source, folder / "plain", *FLAGS, *flags)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return pair(tmp_path_factory.mktemp("built"))


@pytest.fixture
def default(built, tmp_path):
    """Returns what `pair` does without flags, with an old dataset that may be changed."""
    old, source, plain = built
    return shutil.copytree(old, tmp_path / "old"), source, plain


def said(capsys):
    """Returns what the last build said of copied images."""
    done = capsys.readouterr()
    return re.findall(r".*copied from.*", done.out), done.err


def check(built, folder, capsys, *flags, copied):
    """Builds what `pair` has built, with its old dataset; all files must be equal."""
    old, source, plain = built
    capsys.readouterr()
    output = build_here(source, folder / "out", *FLAGS, *flags, f"--reuse={old}")
    assert shards_of(output) == shards_of(plain)
    assert files_of(output) == files_of(plain)
    lines, _ = said(capsys)
    assert lines == ([f"{copied} images copied from {old}"] if copied else [])
    return output


def test_all_files_are_those_of_a_build_without_it_and_what_is_known_by_content_is_copied(
    built, tmp_path, capsys
):
    # 17, without the one that changed, and one twice; there are 2 pages and 7 other new images.
    output = check(built, tmp_path, capsys, copied="17 of 26")
    assert Manifest.load(output).counts["rejects"] == 1


@pytest.mark.parametrize(
    ("flags", "copied"),
    [
        (("--duplicates=drop", "--leaks=drop", "--image_size=64"), "17 of 26"),
        (("--variants=2",), "17 of 26"),
        (("--channels=3", "--splits=file", "--split_fractions=train=0.5,test=0.5"), "17 of 26"),
    ],
    ids=["without duplicates", "with variants", "in colour"],
)
def test_options_of_any_kind_have_their_own_bytes(tmp_path, capsys, flags, copied):
    check(pair(tmp_path, *flags), tmp_path, capsys, *flags, copied=copied)


def test_options_that_decide_no_pixel_may_differ(tmp_path, capsys):
    rows = [{"path": name, "label": f"{k % 3}"} for k, name in enumerate(LATER)]
    labels = f"--labels={write_csv(tmp_path / 'labels.csv', rows)}"
    size = ("--fit=pad", "--image_size=20x10")
    flags = (*size, labels, "--target=label", "--seed=5", "--variants=1")
    built = pair(tmp_path, *flags, old_flags=size)
    check(built, tmp_path, capsys, *flags, copied="16 of 26")  # not the DICOM file


def forge(old, path):
    """Gives an image of a dataset other pixels, with checksums and a hash that fit them."""
    layout = Manifest.load(old).layout
    row = next(row for row in rows_of(old) if row["path"] == path)
    slot, start = layout.features["image"], row["row"] * layout.stride
    shard = bytearray((old / row["shard"]).read_bytes())
    forged = bytes(range(slot.length))
    shard[start + slot.offset : start + slot.offset + slot.length] = forged
    end = start + layout.stride - FOOTER_LENGTH
    crc = masked_crc32c(shard[start + HEADER_LENGTH : end])
    shard[end : end + FOOTER_LENGTH] = crc.to_bytes(4, "little")
    (old / row["shard"]).write_bytes(shard)

    def change(hashes):
        forged_hash = xxhash.xxh3_128_hexdigest(forged)
        return [forged_hash if found == row["pixels_xxh3"] else found for found in hashes]

    change_column(old / "examples.parquet", "pixels_xxh3", change)
    return forged


def test_pixels_and_facts_come_from_the_old_dataset(default, tmp_path):
    old, source, plain = default
    path = "train/CNV/CNV-5-1.jpeg"
    forged = forge(old, path)
    change_column(old / "examples.parquet", "brightness", lambda values: [0.5 for _ in values])
    output = build_here(source, tmp_path / "out", *FLAGS, f"--reuse={old}")
    (row,) = (row for row in rows_of(output) if row["path"] == path)
    assert row["pixels_xxh3"] == xxhash.xxh3_128_hexdigest(forged)
    assert row["brightness"] == 0.5
    assert forged in (output / row["shard"]).read_bytes()
    (new,) = (row for row in rows_of(output) if row["path"] == "train/CNV/CNV-3-1.jpeg")
    assert new in rows_of(plain)


@pytest.mark.parametrize(
    ("damage", "num_damaged"),
    [
        (flip, 1),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), 1),
        (lambda path: path.unlink(), 6),
    ],
    ids=["a bit is wrong", "the end is missing", "a shard is missing"],
)
def test_a_damaged_record_is_decoded_again_and_said(tmp_path, capsys, damage, num_damaged):
    first, later = scans(range(18)), {**scans(range(18)), **scans([50], "NORMAL")}
    old, source, plain = pair(tmp_path, first=first, later=later)
    damage(old / "train-00001-of-00003.tfrecord")
    capsys.readouterr()
    output = build_here(source, tmp_path / "out", *FLAGS, f"--reuse={old}")
    assert files_of(output) == files_of(plain)
    what = "1 record" if num_damaged == 1 else f"{num_damaged} records"
    (line,), _ = said(capsys)
    assert line.startswith(
        f"{18 - num_damaged} of 19 images copied from {old}; {what} of it damaged"
    )


def test_a_record_whose_row_tells_other_pixels_is_decoded_again(tmp_path, capsys):
    old, source, plain = pair(tmp_path, first=scans(range(9)), later=scans(range(9)))
    change_column(old / "examples.parquet", "row", lambda rows: rows[::-1])
    output = build_here(source, tmp_path / "out", *FLAGS, f"--reuse={old}")
    assert files_of(output) == files_of(plain)
    assert "6 records of it damaged" in said(capsys)[0][0]  # the middle one of each shard is right


@pytest.mark.parametrize(
    ("facts", "name", "change", "told"),
    [
        ("preprocessing", "resize", "box", "resize: 'box' there, 'bilinear' now"),
        ("options", "decoder", {"pillow": "1.0"}, "pillow: '1.0' there"),
    ],
)
def test_a_dataset_with_other_pixels_is_of_no_use_which_is_said_before_the_build(
    default, tmp_path, capsys, facts, name, change, told
):
    old, source, plain = default
    before = getattr(Manifest.load(old), facts)
    change_json(old / "manifest.json", **{facts: {**before, name: change}})
    capsys.readouterr()
    output = build_here(source, tmp_path / "out", *FLAGS, f"--reuse={old}")
    assert files_of(output) == files_of(plain)
    lines, err = said(capsys)
    assert lines == []
    assert f"nothing can be copied from --reuse {old}: " in err.partition("writing:")[0]
    assert told in err


def test_a_file_that_was_decoded_as_another_kind_than_its_name_says_now_is_not_copied(
    default, tmp_path, capsys
):
    # A file can be DICOM and a picture: the preamble of DICOM may be the head of a TIFF.
    old, source, plain = default
    kinds = {"DICOM": "TIFF", "JPEG": "DICOM"}
    change_column(
        old / "examples.parquet", "file_format", lambda found: [kinds.get(k, k) for k in found]
    )
    output = build_here(source, tmp_path / "out", *FLAGS, f"--reuse={old}")
    assert files_of(output) == files_of(plain)
    assert said(capsys)[0] == [f"2 of 26 images copied from {old}"]


@pytest.mark.parametrize(
    ("old", "message"),
    [
        ("nowhere", "nowhere/manifest.json is missing: the folder does not exist"),
        ("unfinished", "the build did not finish"),
    ],
)
def test_what_is_no_other_dataset_is_wrong_usage(tmp_path, monkeypatch, capsys, old, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unfinished").mkdir()
    source = write_tree(tmp_path / "scans", scans(range(3)))
    assert run_build_here(source, "out", f"--reuse={old}") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def changed(name, value):
    """Returns what gives all rows of a column another value, with a SHA-256 that fits."""

    def change(path):
        table = pq.read_table(path)
        column = pa.array([value] * len(table), None if value else table[name].type)
        write_table(path, table.set_column(table.schema.get_field_index(name), name, column))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip, "examples.parquet was changed or is damaged: it has SHA-256"),
        (lambda path: pq.write_table(pq.read_table(path)[:9], path), "it has SHA-256"),
        (lambda path: path.with_name("croissant.json").unlink(), "croissant.json, which has the"),
        (lambda path: write_table(path, pq.read_table(path).drop_columns("shape")),
         "examples.parquet has no column shape"),
        (changed("width", None), "examples.parquet has rows without a value for width"),
        (changed("pixels_xxh3", None), "rows without a value for pixels_xxh3"),
        (changed("file_bytes", "odd"), "has columns of other types than a build writes"),
        (changed("brightness", [1.0]), "has columns of other types than a build writes"),
    ],
)  # fmt: skip
def test_a_table_of_the_old_dataset_that_was_changed_is_not_believed(
    tmp_path, capsys, damage, message
):
    old = build_here(write_zip(tmp_path / "first.zip", scans(range(12))), tmp_path / "old")
    damage(old / "examples.parquet")
    source = write_zip(tmp_path / "later.zip", scans(range(11)))
    capsys.readouterr()
    assert run_build_here(source, tmp_path / "out", f"--reuse={old}") == 2
    *_, line = (err := capsys.readouterr().err).strip().splitlines()
    assert "Traceback" not in err
    assert line.startswith(f"error: --reuse {old}: ")
    assert message in line
    assert not list(tmp_path.glob("out/*.tfrecord"))


def test_the_workers_of_a_cluster_must_reach_the_old_dataset(default, tmp_path):
    old, source, _ = default
    flags = ("--runner=DataflowRunner", "--staging=gs://bucket/x", "--setup_file=./setup.py")
    with (
        pytest.raises(errors.UserError, match=r"--reuse \S+ is on a disk of this machine"),
        prepare(source, tmp_path / "out", *flags, f"--reuse={old}"),
    ):
        pass
    with (
        pytest.raises(errors.UserError, match="signature or a password"),
        prepare(source, tmp_path / "out", "--runner=FlinkRunner", "--reuse=https://a:b@host/old"),
    ):
        pass
    with prepare(source, tmp_path / "out", *FLAGS, f"--reuse={old}") as job:
        shutil.rmtree(old)
        with pytest.raises(errors.BuildError, match="a worker cannot read --reuse"):
            TaskWriter(job.build)


def test_an_old_dataset_is_read_from_a_store(default, tmp_path, az, capsys):
    old, source, plain = default
    url = upload(old, f"az://{CONTAINER}/old")
    for output in (tmp_path / "out", f"az://{CONTAINER}/new"):
        capsys.readouterr()
        build_here(source, output, *FLAGS, f"--reuse={url}")
        assert said(capsys)[0] == [f"17 of 26 images copied from {url}"]
    assert files_of(tmp_path / "out") == files_of(plain)
    assert az.read("new/") == files_of(plain)


def test_with_a_seed_that_is_searched_the_build_names_that_of_the_old_dataset(tmp_path, capsys):
    flags = ("--splits=patient", "--split_fractions=train=0.5,test=0.5")
    source = write_zip(tmp_path / "scans.zip", scans(range(12)))
    for number, seed in enumerate(("auto", "7")):
        old = build_here(source, tmp_path / f"old{number}", *FLAGS, *flags, f"--split_seed={seed}")
        found = re.search(r"with seed (\d+)", " ".join(Manifest.load(old).audit["notes"]))[1]
        capsys.readouterr()
        output = tmp_path / f"out{number}"
        build_here(source, output, *FLAGS, *flags, "--split_seed=auto", f"--reuse={old}")
        advice = f"--split_seed {found} keeps them where they are in {old}"
        assert advice in capsys.readouterr().err.partition("listing the images")[0]
    build_here(source, tmp_path / "new", *FLAGS, *flags, "--split_seed=7", f"--reuse={old}")
    assert "--split_seed auto chooses" not in capsys.readouterr().err


@pytest.mark.slow
def test_workers_of_this_machine_share_the_index(default, tmp_path):
    old, source, plain = default
    done = run_build(source, tmp_path / "out", *FLAGS, f"--reuse={old}", "--direct_num_workers=2")
    assert f"17 of 26 images copied from {old}" in done.stdout
    assert files_of(tmp_path / "out") == files_of(plain)
