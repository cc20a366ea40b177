"""The page on papers is true: what it names is there, in a real dataset and a finished run."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq

PAGE = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if re.match(r"\| [^-C]", line)]


def has(path, field):
    """Tells whether a file has a field: a column, or a place in JSON such as `config.seed`."""
    if path.suffix == ".parquet":
        return field in pq.read_schema(path).names
    if path.suffix == ".csv":
        return field in path.read_text().splitlines()[0].split(",")
    value = json.loads(path.read_text())
    for name in field.split("."):
        value = value[0] if isinstance(value, list) else value
        if name not in value:
            return False
        value = value[name]
    return True


def missing(text, **folders):
    """Yields the files, and the fields named after them, that are not there."""
    path = Path()
    for name in re.findall(r"`([\w./]+)`", text):
        folder, _, rest = name.partition("/")
        if rest:
            path = folders[folder] / rest
        if not (path.is_file() if rest else has(path, name)):
            yield f"{path.name}: {name}"


def test_every_file_and_field_that_the_page_names_is_there(built_dataset, class_run):
    text, folders = "\n".join(row[-1] for row in ROWS), {"DATA": built_dataset, "RUN": class_run}
    assert text.count("`") > 120
    assert [*missing(text, **folders)] == []
    wrong = "`RUN/config.json`: `seed`, `config.seed`; `DATA/rejects.csv`: `label`; `RUN/x.json`"
    assert [each[-5:] for each in missing(wrong, **folders)] == [" seed", "label", ".json"]


def test_every_item_of_both_lists_is_on_the_page():
    for column, most in ((0, 44), (1, 27)):
        ranges = re.findall(r"(\d+)[a-d]?(?:–(\d+))?", ", ".join(row[column] for row in ROWS))
        items = {item for a, b in ranges for item in range(int(a), int(b or a) + 1)}
        assert items == set(range(1, most + 1))
