"""`--rename_classes`: a build whose classes have other names, or are joined."""

import pytest
from builds import build_here, rows_of, run_build_here, write_csv
from image_files import jpeg, scans_of

from tfrecord_io.format.kinds import GRADES
from tfrecord_io.format.manifest import Manifest

CLASSES = ("CNV", "DME", "DRUSEN", "healthy")
#: Three images of each class.
SCANS = {
    f"{name}/{name}-{3 * place + number}-1.jpeg": jpeg(7 * place + number)
    for place, name in enumerate(CLASSES)
    for number in range(3)
}
scans = scans_of(lambda: SCANS)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--rename_classes=CNV=AMD,DRUSEN=AMD"], ("AMD", "DME", "healthy")),
        (["--rename_classes=CNV=DME,DME=CNV"], ("CNV", "DME", "DRUSEN", "healthy")),
        (["--rename_classes=DRUSEN=CNV", "--classes=healthy,CNV"], ("healthy", "CNV")),
        (["--rename_classes=CNV=AMD,DRUSEN=AMD", "--grades=healthy,AMD"], ("healthy", "AMD")),
    ],
)
def test_classes_get_their_new_names_before_they_are_chosen(scans, tmp_path, flags, names):
    output = build_here(scans, tmp_path / "out", *flags)
    new = dict(pair.split("=") for pair in flags[0].partition("=")[2].split(","))
    wanted = {path: new.get(path.split("/")[0], path.split("/")[0]) for path in SCANS}
    rows = {row["path"]: row["label"] for row in rows_of(output)}
    assert rows == {path: label for path, label in wanted.items() if label in names}
    manifest = Manifest.load(output)
    assert manifest.label_names == names
    assert (manifest.label_kind is GRADES) == flags[-1].startswith("--grades")
    assert run_build_here(scans, output, *flags) == 0
    assert run_build_here(scans, output, *flags[1:]) == 2  # the names are in the identity


def test_several_labels_of_a_table_are_joined_too(scans, tmp_path):
    rows = [{"path": path, **{name: int(path.startswith(name)) for name in CLASSES}}
            for path in SCANS]  # fmt: skip
    flags = [
        f"--labels={write_csv(tmp_path / 'labels.csv', rows)}",
        "--label_columns=healthy,DRUSEN,DME,CNV",
        "--rename_classes=DRUSEN=AMD,CNV=AMD",
    ]
    output = build_here(scans, tmp_path / "out", *flags)
    assert Manifest.load(output).label_names == ("healthy", "AMD", "DME")
    labels = dict(zip(CLASSES, ("AMD", "DME", "AMD", "healthy"), strict=True))
    assert all(row["label"] == labels[row["path"].split("/")[0]] for row in rows_of(output))


@pytest.mark.parametrize(
    "flags",
    [["--rename_classes=cnv=CNV"], ["--rename_classes=CNV=AMD", "--classes=CNV"],
     ["--rename_classes=CNV"], ["--rename_classes=CNV=A,CNV=B"]],
)  # fmt: skip
def test_names_that_are_not_there_are_refused(scans, tmp_path, capsys, flags):
    assert run_build_here(scans, tmp_path / "out", *flags) == 2
    assert flags[-1].split("=")[0] in capsys.readouterr().err
