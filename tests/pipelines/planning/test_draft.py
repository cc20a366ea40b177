import pytest

from pipelines.planning.draft import name_of


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ({"kind": "archive", "name": "kermany2018.zip"}, "kermany2018"),
        ({"kind": "archive", "name": "OCT 2017.tar.gz"}, "oct_2017"),
        ({"kind": "archive", "name": "2018-scans.zip"}, "images_2018_scans"),
        ({"kind": "directory", "name": "Ärzte.eyes"}, "rzte"),
        ({"kind": "directory", "name": ".."}, "images"),
        ({"kind": "directory", "code": "5eb63bbbe01eeed0"}, "images"),
        ({"kind": "synthetic", "name": "synthetic-40-seed-0"}, "synthetic_oct"),
    ],
)
def test_a_dataset_is_called_after_its_source(source, name):
    assert name_of(source) == name
