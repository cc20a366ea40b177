"""The page on papers is true: what it names is there, in a real dataset and a finished run."""

import csv
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
        with path.open(encoding="utf-8") as file:
            return field in next(csv.reader(file))
    value = json.loads(path.read_text(encoding="utf-8"))
    value = value[0] if isinstance(value, list) else value
    for name in field.split("."):
        if name not in value:
            return False
        value = value[name]
    return True


def missing(text, **folders):
    """Yields the files, and the fields named after them, that are not there."""
    path = None
    for name in re.findall(r"`([^`]+)`", text):
        folder, _, rest = name.partition("/")
        if rest:
            path = folders[folder] / rest
            if not path.is_file():
                yield name
        elif path and re.fullmatch(r"[\w.]+", name) and not has(path, name):
            yield f"{path.name}: {name}"


def test_every_file_and_field_that_the_page_names_is_there(built_dataset, class_run):
    folders = {"DATA": built_dataset, "RUN": class_run}
    named = [row[-1] for row in ROWS]
    assert "\n".join(named).count("`") > 120
    assert [each for text in named for each in missing(text, **folders)] == []
    wrong = "`RUN/x.json`, `RUN/config.json`: `seed`, `config.seed`; `DATA/rejects.csv`: `label`"
    assert [*missing(wrong, **folders)] == ["RUN/x.json", "config.json: seed", "rejects.csv: label"]


def test_every_item_of_both_lists_is_on_the_page():
    for column, most in ((0, 44), (1, 27)):
        cells = ", ".join(row[column] for row in ROWS)
        ranges = re.findall(r"(\d+)[a-d]?(?:–(\d+))?", cells)
        items = {item for a, b in ranges for item in range(int(a), int(b or a) + 1)}
        assert items == set(range(1, most + 1))
