"""Labels from a table: matched by path, counted in the ledger, part of the fingerprint."""

import dataclasses
import json
import math
import time
import tracemalloc
import unicodedata
import zipfile

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builds import rows_of, run_build_here, write_csv
from dicom_files import dicom_file
from hypothesis import given
from hypothesis import strategies as st
from image_files import grey_pixels, png, scans_of, write_tree, write_zip
from listed import list_members, list_source, notes_of

from pipelines import errors
from pipelines.listing.label_table import LabelTable, read_table
from pipelines.listing.matching import match_files
from pipelines.listing.options import ListingOptions
from pipelines.listing.table_cells import MISSING, read_texts
from pipelines.sources.directory import DirectorySource
from pipelines.sources.source import Member
from tfrecord_io.format.kinds import CLASSES
from train.data.dataset import open_dataset

#: Images without class folders, by file name.
IMAGES = {f"scan{number}.png": png(number) for number in range(8)}
ROWS = [
    {
        "path": name,
        "label": ("sick", "well")[number % 2],
        "patient": f"00{number // 2}",
        "split": "Training" if number < 6 else "test",
    }
    for number, name in enumerate(IMAGES)
]


def read_label_table(*files, left_out=(), **options):
    return read_table(ListingOptions(labels=files, **options)).without(left_out).table


def table_of(folder, rows, delimiter=",", **options):
    path = write_csv(folder / "labels.csv", rows, delimiter)
    return read_label_table(path, **options)


def build(source, labels, output, *more):
    return run_build_here(source, output, f"--labels={labels}", "--name=labelled", *more)


scans = scans_of(lambda: IMAGES, "in")


@pytest.fixture
def build_rows(scans, tmp_path):
    """Builds the scans with a table of these rows; returns the exit code."""

    def run(rows, *flags):
        return build(scans, write_csv(tmp_path / "labels.csv", rows), tmp_path / "out", *flags)

    return run


# ---- reading


def test_a_parquet_file_has_the_digest_of_the_same_csv_in_any_order(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS[::-1]), tmp_path / "labels.parquet")
    table = read_label_table(tmp_path / "labels.parquet")
    assert table.digest == table_of(tmp_path, ROWS).digest
    for change in ({"label": "well"}, {"patient": "9"}, {"split": "test"}):
        assert table_of(tmp_path, [ROWS[0] | change, *ROWS[1:]]).digest != table.digest
    sited = table_of(tmp_path, [row | {"site": "a"} for row in ROWS])
    others = [pa.chunked_array([cells]) for cells in (["a"] * 8, range(8), [*map(str, range(8))])]
    digests = {dataclasses.replace(table, others={"site": column}).digest for column in others}
    assert len({sited.digest, table.digest, *digests}) == 5


@pytest.mark.parametrize(
    ("content", "message", "ending"),
    [
        (b"file,label\na.png,x\n", "needs path", "csv"),
        (b"", "could not be read: Empty CSV file", "csv"),
        (b"path,label\na.png\n", "row 1 has 1 cell instead of 2 in labels.csv", "csv"),
        (b"path,label\n\x81.png,x\n", "expected .csv, .parquet, ", "csv"),
        (b"PK\3\4\x81", "it is not a text", "ods"),
        (b"path,label,age,age\nscan0.png,x,x,x\n", "has the column age more than once", "csv"),
        *(
            (b'{"path": 1', "could not be read: .*; expected", end)
            for end in ("xlsx", "json", "jsonl")
        ),
        (None, "could not be read", "csv"),
    ],
)
def test_a_table_that_cannot_be_used_is_an_error_that_names_it(tmp_path, content, message, ending):
    path = tmp_path / f"labels.{ending}"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(errors.UserError, match=message) as raised:
        read_label_table(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("ending", ["parquet", "xlsx"])
def test_a_table_that_unpacks_to_many_times_its_size_is_refused(tmp_path, ending):
    path = tmp_path / f"labels.{ending}"
    if ending == "parquet":
        column = pa.array(["x" * 10**6]).dictionary_encode().take(pa.array([0] * 80))
        pq.write_table(pa.table({"path": column, "label": column}), path)
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("xl/worksheets/sheet1.xml", bytes(65 << 20))
    assert path.stat().st_size < 3_000_000
    with pytest.raises(errors.UserError, match="more than 50 times its size"):
        read_label_table(path)


@pytest.mark.parametrize(
    ("cells", "kept"),
    [
        (["63", ""], [63, None]),
        (["0.5", "2"], [0.5, 2.0]),
        *((cells, cells) for cells in (
            ["007", "12"], ["9" * 19, "1"], ["1E5", "2E3"], ["-0", "1"], ["0.1234567890123", "1"],
        )),
        (["-0.0", "0.0"], [0.0, 0.0]),
        (["2026-11-22", ""], ["2026-11-22", None]),
    ],
)  # fmt: skip
def test_other_columns_of_a_csv_are_numbers_only_if_all_of_them_plainly_are(tmp_path, cells, kept):
    rows = [{"path": f"{k}.png", "label": "a", "code": cell} for k, cell in enumerate(cells)]
    found = table_of(tmp_path, rows).others["code"].to_pylist()
    assert repr(found) == repr(kept)


@pytest.mark.parametrize("flags", [["--target=age"], ["--label_columns=a,b"]])
def test_a_column_that_examples_parquet_has_for_itself_is_left_out_with_a_note(
    build_rows, scans, tmp_path, flags, capsys
):
    more = {"label": "old", "a": "1", "b": "0", "width": "wide", "note": "x"}
    rows = [row | more | {"age": str(k)} for k, row in enumerate(ROWS)]
    assert build_rows(rows, *flags, "--variants=1") == 0
    assert "left out the column label, width of the table of --labels" in capsys.readouterr().err
    found = pq.read_table(tmp_path / "out" / "examples.parquet")
    assert set(found["width"].to_pylist()) != {"wide"}
    assert "old" not in found["label"].to_pylist()
    assert set(found["note"].to_pylist()) == {"x"}


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("odd", pa.array([1] * 8, pa.timestamp("ns"))),
        ("odd", pa.array([10**7] * 8, pa.date32())),
        ("odd", pa.array([10**14] * 8, pa.timestamp("s"))),
        ("odd", pa.array([1000] * 8, pa.timestamp("ns", "Mars/Base"))),
        ("odd", pa.array([[1]] * 8, pa.list_(pa.timestamp("ns")))),
        ("label", pa.array([["sick", "old"]] * 8)),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_a_column_that_cannot_be_read_is_an_error_that_names_it(tmp_path, name, column):
    path = tmp_path / "labels.parquet"
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(pa.table({n: table[n] for n in table.column_names} | {name: column}), path)
    with pytest.raises(errors.UserError, match=rf"labels\.parquet: .*the column {name}( \(|,)"):
        read_label_table(path)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_every_cell_and_header_is_read_without_the_spaces_around_it(tmp_path, kind):
    rows = [row | {"site": "london", "note": "NA" if kind == "csv" else ""} for row in ROWS]
    spaced = [
        {f" {name}": text and f"{text}\t " if k % 4 == 0 else text for name, text in row.items()}
        for k, row in enumerate(rows)
    ]
    path = tmp_path / "spaced.parquet"
    pq.write_table(pa.Table.from_pylist(spaced), path)
    path = path if kind == "parquet" else write_csv(tmp_path / "spaced.csv", spaced)
    table = read_label_table(path)
    assert table.digest == table_of(tmp_path, rows).digest
    assert table.cells["patient"] == [row["patient"] for row in rows]
    assert table.others["note"].null_count == len(rows)


@pytest.mark.parametrize("name", ["label", "patient", "site"])
@pytest.mark.parametrize(
    ("cells", "kept"),
    [(["1.0", "2", "-0.0"], ["1", "2", "0"]), (["10000000000.0"] * 3, ["10000000000"] * 3),
     *((cells, cells) for cells in (
         ["250.00", "250.0", "1"], ["1.0", "1.1", "2.0"], ["07.0", "1.0", "2.0"]))],
)  # fmt: skip
def test_a_whole_number_is_the_same_text_with_and_without_a_point(tmp_path, name, cells, kept):
    rows = [row | {name: cell} for row, cell in zip(ROWS, cells, strict=False)]
    assert table_of(tmp_path, rows).cells[name] == kept
    # pandas writes 1.0 beside a cell without a value.
    if name == "patient":
        assert table_of(tmp_path, [*rows, ROWS[0] | {name: "nan"}]).cells[name] == [*kept, None]
    path = tmp_path / "labels.parquet"
    numbers = list(map(float, cells))
    pq.write_table(pa.table({"path": list("abc"), "label": list("abc"), name: numbers}), path)
    if kept != cells:
        assert read_label_table(path).cells[name] == kept


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_a_csv_is_read_in_the_encodings_of_spreadsheets_and_a_patient_keeps_its_zeros(
    tmp_path, encoding, delimiter
):
    path = tmp_path / "labels.csv"
    text = f"path,label,patient,größe\na.png,größer,007,{'1 ' * 80_000}\n"
    path.write_bytes(text.replace(",", delimiter).encode(encoding))
    table = read_label_table(path)
    assert table.cells == {"path": ["a.png"], "label": ["größer"], "patient": ["007"]}
    assert list(table.others) == ["größe"]
    said = "is not UTF-8 and was read as Windows-1252: "
    assert [said in note for note in table.notes] == [True] * (encoding == "cp1252")


@pytest.mark.parametrize(
    ("above", "delimiter", "row"),
    [
        ("", ",", None),
        ("sep=;\n", ";", None),
        ('"sep=|"\r\n', "|", None),
        ("sep=;;;;\n", ";", None),
        ("# exported 3 May 2020, by OCT\n# v2\n\n", ",", 4),
        ("OCT export of 3 May, 2020\n", ";", 2),
        ("Export;;;\n;;;\n", ";", 3),
        ("sep=;\nOCT export\n", ";", 2),
        ("Clinic, eye, ward\n", ",", 2),
        ("#OCT\n", ",", 2),
    ],
)
@pytest.mark.parametrize("renamed", [None, {"path": "File", "label": "Finding"}])
def test_lines_above_the_header_are_passed_over_and_told(tmp_path, above, delimiter, row, renamed):
    header = ["File", "Finding", "eye", "x"] if renamed else ["path", "label", "eye", "x"]
    lines = [header, ["a.png", "CNV", "left", "1"], ["b.png", "DME", "", "2"]]
    path = tmp_path / "labels.csv"
    path.write_text(above + "".join(f"{delimiter.join(line)}\n" for line in lines))
    if renamed and above.startswith("Clinic"):
        return  # nothing tells such a title from a header
    table = read_label_table(path, columns=renamed)
    assert table.cells == {"path": ["a.png", "b.png"], "label": ["CNV", "DME"]}
    assert list(table.others) == ["eye", "x"]
    told = [f"row {row} of the table of --labels was read as its header"] if row else []
    assert [note for note in table.notes if "header" in note] == told


@pytest.mark.parametrize("above", ["", "sep=,\n", "# people\n"])
def test_a_table_of_one_column_needs_no_other_to_have_a_header(tmp_path, above):
    (tmp_path / "a.csv").write_text(f"{above}patient\nsmith\njones\n")
    assert read_texts(tmp_path / "a.csv", "--exclude", ["patient"]) == {
        "patient": ["smith", "jones"]
    }


def test_merged_cells_of_excel_count_for_each_of_their_rows(tmp_path):
    book = openpyxl.Workbook()
    rows = [["OCT export", None, None], ["path", "label", "patient"], ["0.png", "CNV", "P1"],
            ["1.png", None, None], ["2.png", "DME", None], ["3.png", "DME", "P2"]]  # fmt: skip
    for row in rows:
        book.active.append(row)
    for area in ("A1:C1", "B3:B4", "C3:C5"):
        book.active.merge_cells(area)
    book.save(tmp_path / "labels.xlsx")
    table = read_label_table(tmp_path / "labels.xlsx")
    assert table.cells["patient"] == ["P1", "P1", "P1", "P2"]
    assert table.cells["label"] == ["CNV", "CNV", "DME", "DME"]
    book.active["C6"] = '="P"&2'
    book.save(tmp_path / "labels.xlsx")
    with pytest.raises(errors.UserError, match="the cell C6 has a formula without a value"):
        read_label_table(tmp_path / "labels.xlsx")
    assert read_label_table(tmp_path / "labels.xlsx", left_out={3}).cells["patient"] == ["P1"] * 3
    write_zip(tmp_path / "labels.xlsx", {"[Content_Types].xml": b"<damaged"})
    with pytest.raises(errors.UserError, match="could not be read: "):
        read_label_table(tmp_path / "labels.xlsx")


@pytest.mark.parametrize(
    ("value", "number_format", "text"),
    [(7, "000", "007"), (7.0, "00000", "00007"), (12345, "000", "12345"), (7, '"P-"000', "P-007"),
     (7, "000-0000", "7"), (7, "000;-000", "007"), (7, "General", "7"), (7, "0", "7"),
     (7, "0.00", "7"), (7, "#,##0", "7"), (7.5, "000", "7.5"), ("7", "000", "7"), (-7, "000", "-7"),
     (7, "0%", "7"), (7, "\\P000", "P007"), (7, "00000\\ ", "00007")],
)  # fmt: skip
def test_a_number_of_excel_keeps_the_zeros_that_its_format_shows(
    tmp_path, value, number_format, text
):
    path = write_table(tmp_path / "a.xlsx", [{"path": "0.png", "label": "a", "patient": value}])
    book = openpyxl.load_workbook(path)
    book.active["C2"].number_format = number_format
    book.save(path)
    assert read_label_table(path).cells["patient"] == [text]


def test_labels_on_another_sheet_are_told_of_and_the_advice_reads_them(tmp_path):
    path = write_table(tmp_path / "labels.xlsx", [{"path": "0.png", "label": "a"}])
    book = openpyxl.load_workbook(path)
    about = book.create_sheet("about", 0)
    book.save(path)
    with pytest.raises(errors.UserError, match=r"sheet was read, 'about'; .* 2 sheets, store"):
        read_label_table(path)
    book.remove(about)
    book.save(path)
    assert read_label_table(path).cells["label"] == ["a"]


def write_table(path, rows):
    """Writes rows as the ending of a file says: CSV, Excel, JSON or Parquet."""
    if path.suffix == ".csv":
        return write_csv(path, rows)
    if path.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for row in ([*rows[0]], *([*row.values()] for row in rows), [None] * 3):
            book.active.append(row)
        book.save(path)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        lines = "\n".join(map(json.dumps, rows))
        path.write_text(lines if path.suffix == ".jsonl" else json.dumps(rows))
    return path


@pytest.mark.parametrize("name", ["a.xlsx", "a.json", "a.jsonl", "columns.json"])
def test_excel_and_json_are_read_as_the_csv_that_they_would_be(tmp_path, name):
    rows = [row | {"age": 60 + k, "dose": 0.5 * k} for k, row in enumerate(ROWS)]
    rows[3]["age"] = rows[4]["patient"] = None
    path = write_table(tmp_path / name, rows)
    if name == "columns.json":
        columns = {key: {str(k): row[key] for k, row in enumerate(rows)} for key in rows[0]}
        path.write_text(json.dumps(columns))
    table = read_label_table(path)
    assert table.digest == table_of(tmp_path, rows).digest
    assert table.cells["patient"][3:5] == ["001", None]
    assert table.others["age"].to_pylist()[2:4] == [62, None]
    if path.suffix == ".json":  # a single object is a row
        path.write_text(json.dumps(rows[0]))
        assert read_label_table(path).digest == table_of(tmp_path, rows[:1]).digest


@pytest.mark.parametrize(
    "places",
    [("train_labels.csv", "valid.csv"), ("train/labels.csv", "valid/labels.csv"),
     ("train/train.csv", "valid/valid.csv")],
)  # fmt: skip
def test_several_tables_are_one_with_the_splits_in_their_names(tmp_path, places):
    rows = {"train": [{"path": "1.png", "label": "a"}], "valid": [{"path": "1.png", "label": "b"}]}
    for place, some in zip(places, rows.values(), strict=True):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        write_csv(tmp_path / place, some)
    table = read_label_table(*(tmp_path / place for place in places))
    assert table.cells["split"] == ["train", "valid"]
    # A folder names its pictures, too.
    in_folders = "/" in places[0]
    wanted = ["train/1.png", "valid/1.png"] if in_folders else ["1.png", "1.png"]
    assert table.cells["path"] == wanted
    with pytest.raises(errors.UserError, match="each needs a column split, or a split in its name"):
        read_label_table(tmp_path / places[0], write_csv(tmp_path / "more.csv", rows["train"]))


def test_several_labels_are_divided_by_their_separator(tmp_path):
    labels = ["Mass|Effusion", "No Finding", "", "Mass | Hernia ", "none"]
    rows = [row | {"label": label} for row, label in zip(ROWS, labels, strict=False)]
    path = write_csv(tmp_path / "labels.csv", rows)
    options = ListingOptions(labels=path, label_separator="|")
    table = read_table(options).table
    assert table.label_names == ("Effusion", "Hernia", "Mass", "No Finding")
    expected = ["Effusion|Mass", "No Finding", "", "Hernia|Mass", "none"]
    assert table.cells["label"] == expected
    with pytest.raises(errors.UserError, match=r"label 'Mass\|Effusion' may be several; --label_s"):
        _ = read_table(ListingOptions(labels=path)).table
    assert read_table(ListingOptions(labels=path, classes=("No Finding",))).table
    write_csv(path, [ROWS[0] | {"label": "wet; active"}])
    alone = read_table(ListingOptions(labels=path)).table
    assert "the label 'wet; active' may be several" in alone.notes[-1]


@pytest.mark.parametrize(
    ("lep", "advice"),
    [("10", "--label_columns Lep,Other --one_class, as each"), ("11", "Lep,Other, columns of")],
)
def test_columns_of_0_and_1_are_named_with_the_flags_that_read_them(tmp_path, lep, advice):
    rows = [{"path": f"{k}.png", "age": 50, "Lep": lep[k], "Other": k} for k in range(2)]
    with pytest.raises(errors.UserError, match=f"or with .*{advice}"):
        table_of(tmp_path, rows)


def test_columns_of_exclusive_classes_are_one_class(tmp_path):
    pairs = [("1", "0"), ("0", "1"), ("0", "0"), ("", "1")]
    rows = [{" path": f"{k}.png", " Lep": a, " Non Lep": b} for k, (a, b) in enumerate(pairs)]
    path = write_csv(tmp_path / "_classes.csv", rows)
    options = ListingOptions(labels=path, label_columns=("Lep", "Non Lep"), one_class=True)
    assert read_table(options).table.cells["label"] == ["Lep", "Non Lep", "", ""]
    assert (options.label_kind, options.label_names) == (CLASSES, ("Lep", "Non Lep"))
    write_csv(path, [*rows, {" path": "x", " Lep": "1", " Non Lep": "1"}])
    with pytest.raises(errors.UserError, match=r"row 5 has a 1 for Lep\|Non Lep; --one_class"):
        _ = read_table(options).table


@pytest.mark.parametrize(
    ("meaning", "label"), [("positive", "a"), ("negative", "none"), ("missing", "")]
)
def test_an_uncertain_label_is_what_the_user_says(tmp_path, meaning, label):
    rows = [{"path": "1.png", "a": "-1.0", "b": "0.0"}, {"path": "2.png", "a": "1.0", "b": ""}]
    columns = ("a", "b")
    table = table_of(tmp_path, rows, label_columns=columns, uncertain=meaning)
    assert table.cells["label"] == [label, ""]
    with pytest.raises(errors.UserError, match=r"row 1 has '-1' .*; --uncertain says what"):
        table_of(tmp_path, rows, label_columns=columns)


# ---- cells without a value

KEPT = ["Na", "NONE", "none", "-", "?", "na", "NAN"]


@pytest.mark.parametrize("name", ["label", "patient", "note"])
def test_in_a_csv_the_texts_that_pandas_takes_for_missing_are_missing(tmp_path, name):
    rows = [ROWS[0] | {"note": "x", name: text} for text in [*MISSING, *KEPT]]
    table = table_of(tmp_path, rows)
    cells = table.others["note"].to_pylist() if name == "note" else table.cells[name]
    assert [cell or None for cell in cells] == [None] * len(MISSING) + KEPT
    (note,) = table.notes
    assert f"table of --labels: 25 in {name} (written '' or '#DIV/0!' or" in note


def test_a_pattern_for_patients_whom_the_table_names_is_told(tmp_path, scans, capsys):
    labels = write_csv(tmp_path / "labels.csv", ROWS)
    assert build(scans, labels, tmp_path / "out", r"--patient_regex=scan(\d)") == 0
    told = "warning: the column patient of the table names the patients, and not --patient_regex"
    assert told in capsys.readouterr().err
    assert {row["patient"] for row in rows_of(tmp_path / "out")} == {row["patient"] for row in ROWS}


def test_missing_names_the_texts_that_are_missing_instead(tmp_path):
    rows = [row | {"label": text} for row, text in zip(ROWS, ("NA", "None", "?", ""), strict=False)]
    assert table_of(tmp_path, rows, missing=("?", "NA")).cells["label"] == ["", "None", "", ""]
    assert table_of(tmp_path, rows, missing=("",)).cells["label"] == ["NA", "None", "?", ""]
    rows = [{"path": f"{cell}.png", "a": cell} for cell in ("1", "NA", "0")]
    assert table_of(tmp_path, rows, label_columns=("a",)).cells["label"] == ["a", "", "none"]
    assert table_of(tmp_path, rows, target="a").cells["label"] == ["1", "", "0"]


def test_in_parquet_null_and_nan_are_missing_and_texts_only_if_they_are_named(tmp_path):
    file = tmp_path / "labels.parquet"
    columns = {"path": list("abc"), "label": ["NA", "x", None], "patient": [1.0, math.nan, None]}
    columns["age"] = pa.array([math.nan, 1.5, None], pa.float32())
    pq.write_table(pa.table(columns), file)
    table = read_label_table(file)
    assert table.cells["label"] == ["NA", "x", ""]
    assert table.cells["patient"] == ["1", None, None]
    assert table.others["age"].to_pylist() == [None, 1.5, None]
    counts = "cells without a value in the table of --labels: 1 in label, 2 in patient, 2 in age"
    assert table.notes == (counts,)
    assert read_label_table(file, missing=("NA",)).cells["label"] == ["", "x", ""]


# ---- matching

NAMES = ["a/1.png", "a/2.png", "b/1.png", "b/c/3.png", "c/3.json"]


def match(folder, paths, **columns):
    """Returns the row of each of NAMES, why rows have no file, and the notes."""
    rows = [{"path": path, "label": "x"} for path in paths]
    for name, values in columns.items():
        rows = [row | {name: value} for row, value in zip(rows, values, strict=True)]
    found, _, ledger = match_files(NAMES, table_of(folder, rows))
    notes = [note.text for note in ledger.notes if not note.is_private]
    return found, [reject.detail for reject in ledger.rejects], notes


NONE = [None] * 5
SEVERAL = "2 files end with this path, such as 'a/1.png', 'b/1.png'"
NO_FILE = "the source has no such file; it has files such as"


@pytest.mark.parametrize(
    ("paths", "row_of_file", "details", "num_notes"),
    [
        (["1.png", "1", "9.png", "ng", ""], NONE, [SEVERAL] * 2 + [NO_FILE] * 3, 0),
        (["london/2.png", "zurich/2.png"], NONE, ["that of 'a/2.png' has another row"] * 2, 0),
        (["a/2.png", "MURA/a/", "b", "b/c", "d"], [1, 0, 2, 3, None], [NO_FILE], 0),
        (["2.png", "a/2.png", "a/1.png"], [2, 0, None, None, None], [], 1),
        *(
            ([path], [0 if k == place else None for k in range(5)], [], 0)
            for path, place in {"a/1.png": 0, "./a/1.png": 0, "\\b\\1.png": 2, "2.png": 1,
                                "c/3.png": 3, "c/3": 3, "3": 3, "b/1": 2}.items()
        ),
    ],
)  # fmt: skip
def test_what_rows_mean_and_what_is_said_of_others(
    tmp_path, paths, row_of_file, details, num_notes
):
    found, said, notes = match(tmp_path, paths)
    assert found == row_of_file
    assert all(detail in text for detail, text in zip(details, said, strict=True))
    assert [note.startswith("1 rows of the table of") for note in notes] == [True] * num_notes


def test_two_rows_for_one_file_are_an_error_that_names_both(tmp_path):
    with pytest.raises(errors.UserError, match=r"rows 2 and 3 both name 'a/2\.png'"):
        match(tmp_path, ["a/1.png", "2.png", "a/2.png"], patient="123")


def test_columns_of_a_clinical_table_get_the_names_that_are_expected(tmp_path):
    rows = [
        {"": row, "folder": "left", "filename": old["path"], "finding": old["label"],
         "patientid": old["patient"], "weight": "80", "label": "old"}
        for row, old in enumerate(ROWS)
    ]  # fmt: skip
    renamed = {"path": "folder/filename", "label": "finding", "patient": "patientid"}
    path = write_csv(tmp_path / "clinical.csv", rows)
    columns = renamed | {"kilograms": "weight"}
    table = read_table(ListingOptions(labels=path, columns=columns)).table
    for name in ("label", "patient"):
        assert table.cells[name] == [row[name] for row in ROWS]
    assert table.cells["path"][0] == "left/scan0.png"
    assert list(table.others) == ["kilograms"]
    assert "left out what the table of --labels has in columns without a name" in table.notes[0]
    assert "left out the column label of the table of --labels, whose place" in table.notes[1]
    with pytest.raises(errors.UserError, match="--columns path=file: --labels"):
        table_of(tmp_path, rows, columns={"path": "file"})


@given(
    files=st.sets(st.text("ab/", min_size=1, max_size=5).map(lambda t: f"d/{t.strip('/') or 'a'}")),
    rows=st.sets(st.text("ab/", min_size=1, max_size=5).map(lambda t: t.strip("/") or "a")),
)
def test_every_row_is_matched_once_or_named(tmp_path_factory, files, rows):
    folder = tmp_path_factory.mktemp("table")
    names = sorted(name for name in files if "//" not in name)
    table = table_of(folder, [{"path": path, "label": "x"} for path in sorted(rows)] or ROWS)
    try:
        row_of_file, _, ledger = match_files(names, table)
    except errors.UserError:
        return
    paths = table.cells["path"]
    rejects = {reject.source_path for reject in ledger.rejects}
    for name, row in zip(names, row_of_file, strict=True):
        if row is not None:
            assert paths[row] not in rejects
            assert paths[row].rpartition("/")[2] in name.split("/")
    # A folder's row says nothing where all its files have rows of their own.
    matched = {paths[row] for row in row_of_file if row is not None}
    for path in set(paths) - matched - rejects:
        assert any(f"/{path.rpartition('/')[2]}/" in f"/{name}" for name in names)


def test_a_file_may_lie_deeper_in_the_folder_that_its_row_names(tmp_path):
    found, details, _ = match(tmp_path, ["b/3.png", "a/3.png", "c/b/3.png"])
    assert (found, len(details)) == ([None, None, None, 0, None], 2)
    # The name of the file itself is not a folder on its path.
    found, *_ = match_files(
        ["b/3.png", "3/a/3.png"], table_of(tmp_path, [{"path": "3/3.png", "label": "x"}])
    )
    assert found == [None, 0]


def test_a_row_is_matched_by_the_longest_end_of_its_path_which_is_said(tmp_path):
    paths = [
        "/kaggle/input/oct/a/1.PNG",
        "C:\\scans\\A\\2.jpeg",
        "x/4.png",
        "y/c/3.json",
        "b/2.png",
    ]
    rows = [{"path": path, "label": "x"} for path in paths]
    row_of_file, _, ledger = match_files(NAMES, table_of(tmp_path, rows))
    assert row_of_file == [0, 1, None, None, 3]
    ((note, *_),) = ledger.notes
    assert "3 rows of the table of --labels were matched by the end of their path: " in note
    assert "'kaggle/input/oct/a/1.PNG' is 'a/1.png', 'C:/scans/A/2.jpeg' is 'a/2.png', " in note
    # The source has the folder b, and this file is not in it.
    assert [reject.source_path for reject in ledger.rejects] == ["x/4.png", "b/2.png"]


def test_many_rows_are_matched_by_the_ends_of_their_paths_without_comparing_or_keeping_all():
    names = [f"scans/{'deep/' * 20}{k}/image.png" for k in range(10_000)]
    cells = {"path": [f"/kaggle/input/{name}" for name in names], "label": ["x"] * 10_000}
    start = time.process_time()
    tracemalloc.start()
    try:
        assert match_files(names, LabelTable(name="", cells=cells))[0] == list(range(10_000))
        # 830 bytes a name; all ends of all names take 11,000
        assert tracemalloc.get_traced_memory()[1] < 2_000 * len(names)
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 20  # 2 s; comparing all pairs takes minutes


# ---- listing


def list_rows(folder, names, rows, **options):
    """Returns the listing of files of these names with a table of these rows."""
    labels = write_csv(folder / "labels.csv", rows)
    members = [Member(name, 5, version=place) for place, name in enumerate(names)]
    return list_members(members, labels=labels, **options)


def reasons(listing):
    return {reject.source_path: reject.reason for reject in listing.ledger.rejects}


def test_what_the_table_and_the_source_do_not_share_is_counted(tmp_path):
    labels = {"1.png": "x", "2.png": "", "gone.png": "y"}
    rows = [{"path": path, "label": label} for path, label in labels.items()]
    names = [f"images/{name}" for name in ("1.png", "2.png", "3.png", "notes.txt")]
    listing = list_rows(tmp_path, [*names, "images 2/1.png"], rows, tree="images")
    assert listing.table["path"].to_pylist() == ["1.png"]
    assert reasons(listing) == {
        "images/2.png": "no_label", "images/3.png": "no_label", "gone.png": "missing_file",
    }  # fmt: skip
    assert listing.ledger.ignored == {"no_image_name": 1, "other_tree": 1}
    assert listing.ledger.num_files == 6


@pytest.mark.parametrize(("other", "alike"), [("a", ["the labels 'A' and 'a'"]), ("test", [])])
def test_labels_that_look_alike_are_warned_of_by_the_names_of_their_columns(tmp_path, other, alike):
    rows = [{"path": f"{k}.png", "A": k, other: 1} for k in range(2)]
    listing = list_rows(tmp_path, ["0.png", "1.png"], rows, label_columns=("A", other))
    assert [note.partition(" differ")[0] for note in notes_of(listing)] == alike


def test_a_split_that_cannot_be_a_name_is_an_error_with_its_row(tmp_path):
    with pytest.raises(errors.UserError, match="row 1 has the split 'Fold 1'"):
        list_rows(tmp_path, ["scan0.png"], [ROWS[0] | {"split": "Fold 1"}])


def test_a_file_without_a_row_is_a_reject_whatever_the_names_of_an_export_are(tmp_path):
    names = ["IM0001", "IM0002", "1.2.840.17", "1.2.840.18", "README.txt", "DICOMDIR"]
    rows = [{"path": name, "label": "a"} for name in names[:3:2]]
    listing = list_rows(tmp_path, names, rows)
    assert reasons(listing) == {"IM0002": "no_label", "1.2.840.18": "no_label"}
    assert listing.ledger.ignored == {"no_image_name": 2}


@pytest.mark.parametrize("ending", ["csv", "xlsx", "json", "jsonl", "parquet"])
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_in_a_table_and_in_flags_are_one_whatever_their_form(tmp_path, ending, form):
    def of(text, number):
        return unicodedata.normalize(("NFC", "NFD")[number % 2], text)

    rows = [
        {"path": of(f"ä{number}.png", number),
         of("Größe", 1): of(("Œdéme", "Žádný")[number // 4], number),
         of("Pacienté", 0): of("Müller", number), of("Säule", 1): of("Zürich", number)}
        for number in range(8)
    ]  # fmt: skip
    renamed = {"label": "Größe", "patient": "Pacienté", "site": "Säule"}
    listing = list_members(
        [Member(of(f"Gerät/ä{number}.png", number // 2), 1) for number in range(8)],
        labels=write_table(tmp_path / f"labels.{ending}", rows),
        columns={name: unicodedata.normalize(form, column) for name, column in renamed.items()},
        classes=tuple(unicodedata.normalize(form, name) for name in ("Žádný", "Œdéme")),
    )
    assert listing.label_names == ("Žádný", "Œdéme")
    assert listing.table["label"].to_pylist() == ["Œdéme"] * 4 + ["Žádný"] * 4
    assert set(listing.table["patient"].to_pylist()) == {"Zürich/Müller"}


# ---- the command


def test_patients_of_two_sites_are_two_patients_and_their_sites_are_measured(
    build_rows, tmp_path, capsys
):
    sites = ("london", "zurich")
    rows = [row | {"patient": "17", "site": sites[k % 2]} for k, row in enumerate(ROWS)]
    output = tmp_path / "out"
    assert build_rows(rows) == 0
    found = {row["path"]: row for row in rows_of(output)}
    for row in rows:
        assert found[row["path"]]["site"] == row["site"]
        assert found[row["path"]]["patient"] == f"{row['site']}/17"
    dataset = open_dataset(str(output))
    assert set(dataset.values("site", dataset.part("test").rows)) == set(sites)
    (tmp_path / "secret").write_bytes(b"0123456789abcdef" * 4)
    assert build_rows(rows, f"--anonymize={tmp_path / 'secret'}", "--overwrite") == 0
    assert len({(row["site"], row["patient"]) for row in rows_of(output)}) == 2
    assert build_rows([*rows[:-1], rows[-1] | {"site": " "}]) == 2
    assert "row 8 has no site" in capsys.readouterr().err


def test_a_site_is_part_of_patients_from_dicom_tags_and_names(tmp_path):
    patient = {(0x0010, 0x0020, "LO"): "17"}
    files = {f"{k}.dcm": dicom_file(grey_pixels(k), patient) for k in range(2)}
    files |= {f"a-17-{k}.png": png(k) for k in range(2)}
    source = DirectorySource(write_tree(tmp_path / "in", files))
    rows = [{"path": name, "label": "x", "site": f"s{k % 2}"} for k, name in enumerate(files)]
    labels = write_csv(tmp_path / "labels.csv", rows)
    refs = list_source(source, labels=labels).table
    sites, patients = zip(*(text.split("/") for text in refs["patient"].to_pylist()), strict=True)
    assert refs["path"].to_pylist() == ["0.dcm", "1.dcm", "a-17-0.png", "a-17-1.png"]
    assert sites == ("s0", "s1", "s0", "s1")
    assert patients[0] == patients[1] != patients[2] == patients[3] == "17"


def test_line_breaks_in_a_long_note_end_no_row(tmp_path):
    # More than a block of Arrow's, which would otherwise end at one of these lines.
    note = "scan0.png,well,,\n" * 70_000
    table = table_of(tmp_path, [ROWS[0] | {"note": note}, ROWS[1] | {"note": ""}])
    assert table.others["note"].to_pylist() == [note.strip(), None]


@pytest.mark.parametrize(
    ("change", "flags", "message"),
    [({"label": "   "}, (), "no label (see --missing). Its paths fit files; fill in its labels"),
     ({"label": "5 %"}, ("--target=label",), "5 %'. Its paths fit files; write its numbers as"),
     ({"path": "x.png", "age": "3"}, (), "Its `path` should be a file's path in the input")],
)  # fmt: skip
def test_a_table_without_any_label_is_an_error_that_says_why(
    build_rows, capsys, change, flags, message
):
    assert build_rows([row | change for row in ROWS], *flags) == 2
    assert message in capsys.readouterr().err


def of_other_types(num_rows):
    return {
        "seen": pa.array([10**15] * num_rows, pa.timestamp("us", "Europe/Zurich")),
        "scan": pa.array([10**18] * num_rows, pa.timestamp("ns")),
        "half": pa.array([0.5, *[None] * (num_rows - 1)], pa.float16()),
        "view": pa.array(["x"] * num_rows, pa.string_view()),
        "blob": pa.array([b"x"] * num_rows).cast(pa.binary_view()),
        "dose": pa.array([1] * num_rows, pa.decimal128(5, 2)),
        "none": pa.nulls(num_rows),
    }


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_all_that_a_table_says_of_an_image_follows_it_into_the_table_of_examples(
    tmp_path, kind, capsys
):
    # One image is rejected, and train has copies.
    files = IMAGES | {"scan1.png": b"no image", "copy.png": IMAGES["scan2.png"]}
    files = {f"export/images/{name}": content for name, content in files.items()}
    source = write_zip(tmp_path / "in.zip", files)
    rows = [
        # The plan has columns `offset` and `size` of its own.
        row | {"age": 60 + number, "site": f"s{number % 3}", "offset": number, "size": "small"}
        for number, row in enumerate([*ROWS, ROWS[2] | {"path": "copy.png"}])
    ]
    labels = tmp_path / f"labels.{kind}"
    if kind == "csv":
        write_csv(labels, rows)
    else:
        table = pa.Table.from_pylist(rows[::-1])
        table = table.set_column(5, "site", table["site"].dictionary_encode())
        for name, column in of_other_types(len(rows)).items():
            table = table.append_column(name, column)
        pq.write_table(table, labels)
    output = tmp_path / "out"
    options = ["--max_reject_fraction=0.5", "--variants=1", "--num_shards=3"]
    assert build(source, labels, output, *options) == 0
    found = pq.read_table(output / "examples.parquet")
    assert found.schema.field("age").type == pa.int64()
    assert found.schema.field("site").type == pa.string()
    assert kind == "csv" or of_other_types(1).keys() <= {*found.column_names}
    by_path = {f"export/images/{row['path']}": row for row in rows}
    kept = found.to_pylist()
    assert {row["path"] for row in kept} == set(files) - {"export/images/scan1.png"}
    assert {row["split"] for row in kept if row["variant"]} == {"train"}
    for row in kept:
        told = by_path[row["path"]]
        assert row["split"] == {"Training": "train", "test": "test"}[told["split"]]
        assert row["patient"] == f"{told['site']}/{told['patient']}"
        for name in ("label", "age", "site", "offset", "size"):
            assert row[name] == told[name]
    if kind == "csv":  # again it is complete; with another label it is another dataset
        assert build(source, labels, output, *options) == 0
        write_csv(labels, [rows[0] | {"label": "well"}, *rows[1:]])
        assert build(source, labels, output, *options) == 2
        assert "labels" in capsys.readouterr().err
