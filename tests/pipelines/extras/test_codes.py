"""Anonymous datasets: no name of the input in any output, the same bytes for the same secret."""

import io
import pickle
import re
import stat
from collections import Counter

import pyarrow.parquet as pq
import pytest
from builds import build_here, files_of, prepare, read_csv, rows_of
from image_files import encoded, grey_pixels, jpeg, write_tree, write_zip
from PIL import Image

from pipelines import errors
from pipelines.extras import codes
from tfrecord_io.format.schema import image_key


class Names:
    """Gives identifiers that occur nowhere else, and remembers them."""

    def __init__(self):
        self.given = []

    def new(self):
        self.given.append(f"q{len(self.given):05d}zyx")
        return self.given[-1]

    def found_in(self, content):
        """Returns the identifiers in some bytes."""
        found = {name.decode() for name in re.findall(rb"q[0-9]{5}zyx", content.lower())}
        return sorted(found & set(self.given))


def photo(names, seed):
    """Returns a JPEG with identifiers in its EXIF, XMP and comment."""
    exif = Image.Exif()
    exif[0x010E] = f"patient {names.new()}"
    xmp = f"<x>{names.new()}</x>".encode()
    return encoded(grey_pixels(seed), "JPEG", exif=exif, xmp=xmp, comment=names.new())


def planted_tree(names):
    """Returns files by name: identifiers in folders, files, patients and contents."""
    files = {}
    ward = names.new()
    for number in range(40):
        split = ("train", "train", "val", "test")[number % 4]
        label = ("CNV", "NORMAL")[number // 4 % 2]
        folder = f"{ward}/{split}/{label}/{names.new()}"
        files[f"{folder}/{label}-{names.new()}-1.jpeg"] = photo(names, number)
    some = list(files)
    # A copy in the same split, one in another, a patient in two splits, and two files of no use.
    files[f"{ward}/train/CNV/CNV-{names.new()}-1.jpeg"] = files[some[0]]
    files[f"{ward}/test/CNV/CNV-{names.new()}-1.jpeg"] = files[some[1]]
    files[f"{ward}/test/CNV/{some[4].rpartition('/')[2]}"] = jpeg(99)
    files[f"{ward}/train/CNV/CNV-{names.new()}-1.jpeg"] = f"damaged {names.new()}".encode()
    files[f"{ward}/train/CNV/{names.new()}.txt"] = names.new().encode()
    files[f"{ward}/{names.new()}.jpeg"] = jpeg(98)
    return files


def source_of(names, folder):
    """Writes an input; returns its path and the flags that it needs."""
    files, place = planted_tree(names), folder / names.new()
    write_tree(place, files)
    (place / next(iter(files))).parent.joinpath(names.new()).symlink_to(place)
    return place, [
        rf"--patient_regex=-(q[0-9]+zyx)-|{names.new()}", "--max_reject_fraction=0.5",
        "--num_shards=2", "--leaks=drop", "--layout=split/class", "--image_size=64", "--variants=1",
    ]  # fmt: skip


def everything(folder):
    """Returns all bytes of a dataset's files, with their names, and the tables also unpacked."""
    content = io.BytesIO()
    for name, data in files_of(folder).items():
        content.write(name.encode() + data)
        if name.endswith(".parquet"):
            table = pq.read_table(folder / name)
            content.write(repr((table.schema.metadata, table.to_pylist())).encode())
    return content.getvalue()


def test_no_name_of_the_input_is_in_an_output(secret, tmp_path, capfd):
    names = Names()
    source, flags = source_of(names, tmp_path)
    plain, hidden = tmp_path / "plain", tmp_path / "hidden"
    build_here(source, plain, *flags)
    assert len(names.found_in(everything(plain))) > 40  # so this test would see them
    for _ in range(2):
        build_here(source, hidden, *flags, f"--anonymize={secret}")
    assert "is complete" in capfd.readouterr().out
    content = everything(hidden)
    assert names.found_in(content) == []
    assert secret.read_bytes() not in content
    # Nor is there a plain hash of a name, which could be guessed.
    for column in ("key", "patient"):
        values = set(_column(plain, column)) - {None}
        assert not [value for value in values if value.encode() in content]
    assert (hidden / "rejects.csv").read_text().count("\n") > 1
    assert (hidden / "dropped.csv").read_text().count("\n") > 1


def test_the_secret_and_the_names_of_files_stay_out_of_the_job(secret, tmp_path):
    names = Names()
    source, flags = source_of(names, tmp_path)
    with prepare(source, tmp_path / "out", *flags, f"--anonymize={secret}") as job:
        content = pickle.dumps((job.build, job.todo))
    assert secret.read_bytes() not in content
    # A worker must know where the input is, but nothing else.
    assert set(names.found_in(content)) <= {name for name in names.given if name in str(source)}


def test_the_same_secret_gives_the_same_bytes_and_another_one_other_keys(secret, tmp_path):
    files = {f"train/{c}/{c}-1-{n}.jpeg": jpeg(n) for n in range(9) for c in "ab"}
    source, flag = write_zip(tmp_path / "in.zip", files), f"--anonymize={secret}"
    built = [build_here(source, tmp_path / name, flag) for name in "12"]
    assert files_of(built[0]) == files_of(built[1])
    secret.write_text(secret.read_text().upper())
    with pytest.raises(errors.UserError, match="anonymize:"):
        build_here(source, tmp_path / "1", flag)
    other = build_here(source, tmp_path / "3", flag)
    assert not set(_column(built[0], "key")) & set(_column(other, "key"))


def _column(dataset, name):
    return pq.read_table(dataset / "examples.parquet")[name].to_pylist()


def test_of_the_other_columns_of_a_table_only_codes_of_studies_stay(secret, tmp_path):
    source = write_tree(tmp_path / "in", {f"{number}.jpeg": jpeg(number) for number in range(6)})
    labels = tmp_path / "labels.csv"
    rows = [f"{number}.jpeg,a,Miss Doe,study-{number // 2}\n" for number in range(6)]
    labels.write_text("path,label,who,study\n" + "".join(rows))
    built = build_here(source, tmp_path / "out", f"--labels={labels}", f"--anonymize={secret}")
    assert "who" not in pq.read_schema(built / "examples.parquet").names
    # They say which images without a patient belong together.
    assert sorted(Counter(_column(built, "group")).values()) == [2, 2, 2]
    assert set(_column(built, "group")) == {f"study:{code}" for code in _column(built, "study")}
    assert "study-" not in str(_column(built, "group"))


def test_the_private_table_tells_what_each_code_stands_for(secret, source_tree, tmp_path):
    (source := tmp_path / "in").symlink_to(source_tree)
    built = build_here(source, tmp_path / "out", f"--anonymize={secret}", "--max_reject_fraction=1")
    (file,) = secret.parent.glob("*.parquet")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    table = {row["path"]: row for row in pq.read_table(file).to_pylist()}
    for row in rows_of(built):
        name = table[row["path"]]["source_path"]
        assert (source_tree / name).stat().st_size == row["file_bytes"]
        assert table[row["path"]]["key"] == row["key"] != image_key(name)
        assert table[row["path"]]["patient"] == row["patient"]
        assert table[row["path"]]["source_patient"] == name.split("-")[1]
    (reject,) = read_csv(built / "rejects.csv")
    assert table[reject["path"]]["source_path"] == "train/CNV/CNV-1-1.jpeg"


@pytest.mark.parametrize(
    ("content", "place", "message"),
    [(b"", "private", "64 hexadecimal"), (b"kC2zQ" * 20, "private", "64 hexadecimal"),
     (b"x" * 32, "out", "is inside --output"), (b"x" * 32, "in", "is inside --input"),
     (None, "private", "could not be read")],
)  # fmt: skip
def test_a_secret_that_protects_nothing_is_refused(content, place, message, tmp_path):
    (tmp_path / place).mkdir()
    if content is not None:
        (tmp_path / place / "secret.txt").write_bytes(content)
    (tmp_path / "link").symlink_to(tmp_path / place / "secret.txt")
    folders = {"--input": str(tmp_path / "in"), "--output": str(tmp_path / "out")}
    with pytest.raises(errors.UserError, match=message):
        codes.read_secret(tmp_path / "link", folders)
    (file := tmp_path / "secret.txt").write_text(f"{'8f' * 32}\n")
    assert codes.read_secret(file, folders).key == file.read_bytes()
