"""`--rename_classes`: a build whose classes have other names, or are joined."""

import pytest
from builds import build_here, rows_of, run_build_here, write_csv
from image_files import jpeg, write_tree

from tfrecord_io.format.manifest import Manifest

CLASSES = ("CNV", "DME", "DRUSEN", "healthy")
#: Three images of each class.
SCANS = {
    f"{name}/{name}-{3 * place + number}-1.jpeg": jpeg(7 * place + number)
    for place, name in enumerate(CLASSES)
    for number in range(3)
}


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scans")
    write_tree(folder, SCANS)
    return folder


def labels_in(output):
    """Returns the names of the labels in their order, and the label of each path."""
    rows = {row["path"]: row["label"] for row in rows_of(output)}
    return Manifest.load(output).label_names, rows


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--rename_classes=healthy=NORMAL"], ("CNV", "DME", "DRUSEN", "NORMAL")),
        (["--rename_classes=CNV=AMD,DRUSEN=AMD"], ("AMD", "DME", "healthy")),
        (["--rename_classes=DRUSEN=CNV"], ("CNV", "DME", "healthy")),
        (["--rename_classes=CNV=DME,DME=CNV"], ("CNV", "DME", "DRUSEN", "healthy")),
        (["--rename_classes=DRUSEN=CNV", "--classes=healthy,CNV"], ("healthy", "CNV")),
        (["--rename_classes=CNV=AMD,DRUSEN=AMD", "--grades=healthy,AMD"], ("healthy", "AMD")),
    ],
)
def test_classes_get_their_new_names_before_they_are_chosen(scans, tmp_path, flags, names):
    output = build_here(scans, tmp_path / "out", *flags)
    found, rows = labels_in(output)
    new = dict(pair.split("=") for pair in flags[0].partition("=")[2].split(","))
    wanted = {path: new.get(path.split("/")[0], path.split("/")[0]) for path in SCANS}
    assert rows == {path: label for path, label in wanted.items() if label in names}
    assert found == names
    assert run_build_here(scans, output, *flags) == 0
    assert run_build_here(scans, output, *flags[1:]) == 2  # the names are in the identity


ROWS = [{"path": path, "label": path.split("/")[0]} for path in SCANS]
ONE_HOT = [
    {"path": row["path"], **{name: int(row["label"] == name) for name in CLASSES}} for row in ROWS
]
COLUMNS = "--label_columns=healthy,DRUSEN,DME,CNV"


@pytest.mark.parametrize(
    ("rows", "flags", "names", "labels"),
    [
        (ROWS, [], ("AMD", "DME", "healthy"), ["AMD", "DME", "AMD", "healthy"]),
        (ONE_HOT, [COLUMNS], ("healthy", "AMD", "DME"), ["AMD", "DME", "AMD", "healthy"]),
    ],
    ids=["classes", "columns of several labels"],
)  # fmt: skip
def test_labels_of_tables_are_joined_too(scans, tmp_path, rows, flags, names, labels):
    table = write_csv(tmp_path / "labels.csv", rows)
    flags = [f"--labels={table}", "--rename_classes=DRUSEN=AMD,CNV=AMD", *flags]
    found, of_path = labels_in(build_here(scans, tmp_path / "out", *flags))
    assert found == names
    assert of_path == {path: labels[CLASSES.index(path.split("/")[0])] for path in SCANS}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--rename_classes=cnv=CNV"], "names 'cnv', but the classes are 'CNV', 'DME', 'DRUSEN'"),
        (["--rename_classes=CNV=AMD", "--classes=CNV"], "names 'CNV', but the classes are 'AMD'"),
        (["--rename_classes=CNV"], "expected OLD=NEW,... such as cnv=CNV"),
        (["--rename_classes=CNV=A,CNV=B"], "expected OLD=NEW,..."),
    ],
)
def test_names_that_are_not_there_are_refused_with_those_that_are(
    scans, tmp_path, capsys, flags, told
):
    assert run_build_here(scans, tmp_path / "out", *flags) == 2
    assert told in capsys.readouterr().err


def test_of_many_classes_ten_are_shown(tmp_path, capsys):
    write_tree(tmp_path / "in", {f"class {n:02}/{n}.png": jpeg(n) for n in range(12)})
    assert run_build_here(tmp_path / "in", tmp_path / "out", "--rename_classes=a=b") == 2
    assert "'class 08', 'class 09' and 2 more" in capsys.readouterr().err
