"""The table of labels: what it may be, what its cells mean, and what is refused."""

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builds import write_csv
from listed import drawn, list_files, notes_of, places, reasons

from pipelines import errors
from pipelines.listing.options import ListingOptions
from pipelines.listing.table import read_table

ROWS = [
    {"path": f"scan{number}.png", "label": ("sick", "well")[number % 2],
     "patient": f"00{number // 2}", "split": "Training" if number < 6 else "test",
     "age": None if number == 3 else 60 + number}
    for number in range(8)
]  # fmt: skip
FILES = drawn("scan{0..7}.png")


def table_in(path, rows=ROWS):
    """Writes rows as the ending of a file says, which it returns."""
    if path.suffix == ".csv":
        return write_csv(path, rows)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    book = openpyxl.Workbook()
    for row in ([*rows[0]], *([*row.values()] for row in rows), [None] * 3):
        book.active.append(row)
    book.save(path)
    return path


def read(path, **options):
    return read_table(ListingOptions(labels=path, **options))


def column(table, name):
    return table.rows[name].to_pylist()


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.xlsx"])
def test_a_table_says_the_same_in_each_kind_of_file(tmp_path, name):
    table = read(table_in(tmp_path / name))
    assert column(table, "path") == [row["path"] for row in ROWS]
    assert column(table, "label") == [row["label"] for row in ROWS]
    assert column(table, "patient") == [row["patient"] for row in ROWS]  # 007 stays 007
    assert column(table, "split") == ["train"] * 6 + ["test"] * 2
    assert column(table, "other:age") == [row["age"] and str(row["age"]) for row in ROWS]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_csv_is_divided_by_commas_semicolons_or_tabs(tmp_path, encoding, delimiter):
    text = ' path,label,"two\nlines, größe",patient\na.png ,größer,"x\ny, 1",007\n\nb.png,NA,,\n'
    parts = text.split('"')
    parts[::2] = (part.replace(",", delimiter) for part in parts[::2])
    path = tmp_path / "labels.csv"
    path.write_bytes('"'.join(parts).encode(encoding))
    table = read(path)
    assert column(table, "path") == ["a.png", "b.png"]
    assert column(table, "label") == ["größer", None]
    assert column(table, "patient") == ["007", None]
    assert column(table, "other:two\nlines, größe") == ["x\ny, 1", None]


@pytest.mark.parametrize(
    ("content", "message", "name"),
    [
        (b"file,label\na.png,x\n", "--columns path=COLUMN", "a.csv"),
        (b"", "could not be read", "a.csv"),
        (b"path,label\na.png\n", "could not be read", "a.csv"),
        ("path,label\nä.png,x\n".encode("cp1252"), "UTF-8", "a.csv"),
        (b"path label\na.png x\n", "no comma, semicolon or tab", "a.csv"),
        (b"path,label,age,age\na.png,x,x,x\n", "the column age more than once", "a.csv"),
        (b'[{"path": 1}]', "save it as such a table; expected .csv", "a.json"),
        (b"damaged", "could not be read", "a.xlsx"),
        (b"damaged", "could not be read", "a.parquet"),
        (None, "could not be read", "a.csv"),
    ],
)
def test_a_table_that_cannot_be_used_is_an_error_that_names_it(tmp_path, content, message, name):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(errors.UserError, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "Effusion|Mass"}, "--label_columns"),
        ({"label": "wet; active"}, "--classes"),
        ({"split": "a split!"}, "row 1 has the split 'a split!'"),
        ({"site": None}, "row 1 has no site"),
    ],
)
def test_a_cell_that_cannot_be_is_refused(tmp_path, change, message):
    rows = [row | ({"site": "bern"} if "site" in change else {}) for row in ROWS]
    with pytest.raises(errors.UserError, match=message.replace("|", r"\|")):
        read(table_in(tmp_path / "a.csv", [rows[0] | change, *rows[1:]]))
    named = table_in(tmp_path / "b.csv", [ROWS[0] | {"label": "wet; active"}])
    assert column(read(named, classes=("wet; active",)), "label") == ["wet; active"]


@pytest.mark.parametrize(("unknown", "wanted", "ignored"), [
    ("negative", ["Edema", "Mass", "none", "none"], 0), ("drop", ["Edema", "none"], 2)
])  # fmt: skip
def test_one_flag_says_what_a_blank_and_a_minus_one_are(tmp_path, unknown, wanted, ignored):
    cells = [("1.0", "0"), ("", "1"), ("0.0", "-1.0"), ("0", "0")]
    rows = [{"path": f"scan{k}.png", "Edema": a, "Mass": b} for k, (a, b) in enumerate(cells)]
    path, flags = table_in(tmp_path / "a.csv", rows), {"label_columns": ("Edema", "Mass")}
    listing = list_files(drawn("scan{0..3}.png"), labels=path, unknown_labels=unknown, **flags)
    assert listing.table["label"].to_pylist() == wanted
    assert listing.ledger.ignored.get("unknown_label", 0) == ignored
    with pytest.raises(errors.UserError, match=r"Edema 1, Mass 1\b.*--unknown_labels"):
        read(path, **flags)
    table_in(path, [rows[0], rows[0] | {"Edema": "x"}])
    with pytest.raises(errors.UserError, match="row 2 has 'x' in the column Edema"):
        read(path, **flags)


def test_columns_may_have_other_names_and_some_are_left_out(tmp_path):
    rows = [{"File": row["path"], "finding": row["label"], "label": "?", "width": 7, "x": "y"}
            for row in ROWS]  # fmt: skip
    path = table_in(tmp_path / "a.csv", rows)
    table = read(path, columns={"path": "File", "label": "finding"})
    assert ["the column label, width of" in note for note in table.notes] == [True]
    assert table.rows.column_names == ["path", "label", "other:x"]
    with pytest.raises(errors.UserError, match="--columns names Path"):
        read(path, columns={"path": "Path"})


@pytest.mark.parametrize(
    ("cells", "kept"),
    [(["1.0", "2", "-0.0", ""], ["1", "2", "0", None]),
     *((cells, cells) for cells in (["250.00", "250.0"], ["1.0", "1.1"], ["07.0", "1.0"]))],
)  # fmt: skip
def test_a_whole_number_is_the_same_text_with_and_without_a_point(tmp_path, cells, kept):
    rows = [{"path": f"{k}.png", "label": "a", "patient": cell} for k, cell in enumerate(cells)]
    assert column(read(table_in(tmp_path / "a.csv", rows)), "patient") == kept


def test_columns_of_parquet_are_texts(tmp_path):
    names = pa.array(["a.png", "b.png"]).dictionary_encode()
    columns = {"path": names, "label": names, "patient": [1.0, None], "age": [0.5, float("nan")],
               "day": pa.array([0, 1], pa.date32())}  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    table = read(tmp_path / "a.parquet")
    assert column(table, "patient") == ["1", None]
    assert column(table, "other:age") == ["0.5", None]
    assert column(table, "other:day") == ["1970-01-01", "1970-01-02"]
    pq.write_table(pa.table(columns | {"day": [[1], [2]]}), tmp_path / "a.parquet")
    with pytest.raises(errors.UserError, match="the column day"):
        read(tmp_path / "a.parquet")


# ---- the row of a file


@pytest.mark.parametrize("start", ["", "scans/", "./scans/", "scans\\", "export/scans/"])
@pytest.mark.parametrize("ending", [".png", ""])
def test_a_path_is_that_of_a_file_or_the_end_of_one_with_or_without_its_ending(
    tmp_path, start, ending
):
    rows = [row | {"path": f"{start}{row['path'].removesuffix('.png')}{ending}"} for row in ROWS]
    files = {f"export/scans/{name}": data for name, data in FILES.items()}
    listing = list_files(files, labels=table_in(tmp_path / "a.csv", rows))
    assert [label for _, label in places(listing).values()] == [row["label"] for row in ROWS]
    assert listing.table["path"].to_pylist() == sorted(FILES)
    assert (listing.ledger.rejects, notes_of(listing)) == ((), "")


@pytest.mark.parametrize(
    ("tree", "paths", "message"),
    [
        ("train/p{1..1100}/1.png", ["1.png", "p1/1.png"], "1,100 files such as 'train/p1/1.png'"),
        ("a/1.png\na/1.jpg", ["a/1"], "2 files such as 'a/1.png' and 'a/1.jpg'"),
        ("CNV/{1..2}.png", ["C:/oct/CNV/1.PNG"], r"removeprefix\('C:/oct/'\)"),
        ("{1..3}.png", ["1.png", "2", "./1"], r"rows 1 and 3 both name '1\.png'"),
        ("CNV/{1..2}.png", ["x.png", "test/1.png"], "row 2, 'test/1.png': no file"),
    ],
)
def test_a_row_of_several_files_two_of_one_and_a_table_of_none_are_refused(
    tmp_path, tree, paths, message
):
    rows = [{"path": path, "label": "a"} for path in paths]
    with pytest.raises(errors.UserError, match=message):
        list_files(drawn(tree), labels=table_in(tmp_path / "a.csv", rows))


def test_a_file_without_a_row_is_a_reject_and_rows_without_a_file_are_counted(tmp_path):
    files = {**FILES, "more.png": b"", "x.xml": b"", "README": b""}
    rows = [*ROWS[:7], *({**ROWS[0], "path": f"lost{k}.png"} for k in range(3))]
    rows[1] = rows[1] | {"label": ""}
    listing = list_files(files, labels=table_in(tmp_path / "a.csv", rows))
    assert reasons(listing) == dict.fromkeys(["more.png", "scan1.png", "scan7.png"], "no_label")
    assert (listing.ledger.num_files, listing.ledger.ignored) == (11, {"no_image_name": 2})
    assert "3 rows of the table of --labels have no file in the input, such as row 8" in (
        notes_of(listing)
    )


def test_a_patient_of_a_table_is_one_of_its_site_and_all_it_says_is_in_the_digest(tmp_path):
    rows = [row | {"site": "Bern/2" if k < 4 else "rome"} for k, row in enumerate(ROWS)]
    listing = list_files(FILES, labels=table_in(tmp_path / "a.csv", rows))
    assert listing.table["patient"].to_pylist()[3:5] == ["Bern%2F2/001", "rome/002"]
    digests = {listing.digest}
    for change in ({"label": "well"}, {"patient": "9"}, {"split": "val"}, {"age": 7}):
        path = table_in(tmp_path / "a.csv", [rows[0] | change, *rows[1:]])
        digests.add(list_files(FILES, labels=path).digest)
    assert len(digests) == 5
    path = table_in(tmp_path / "a.csv", [*rows[::-1], {**rows[0], "path": "lost.png"}])
    assert list_files(FILES, labels=path).digest == listing.digest
