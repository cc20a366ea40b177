"""For those who have annotations of COCO, VOC or YOLO: a table of labels from them.

COCO (a JSON with images, annotations and categories), Pascal VOC (an XML for each image) and YOLO
(a text for each image, with the names in a .yaml) say where things are in an image. Here it counts
which classes occur: a row for each image, with the names of its classes and, if its folder or file
says so, its split.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

from tfrecord_io.decoding.preprocess import IMAGE_SUFFIXES
from tfrecord_io.format.kinds import NONE, SEPARATOR
from tfrecord_io.format.schema import SPLIT_NAME
from tfrecord_io.terminal.address import local_path
from tfrecord_io.terminal.command import Command
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.printing import refuse
from tfrecord_io.terminal.spelling import one_form

#: The path of an image, the file that describes it, and the names of the classes in it.
_Row = tuple[str, Path, set[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add, folder = parser.add_argument, "COCO, VOC or YOLO files"
    add("directory", type=local_path, metavar="FOLDER", help=folder)
    add("--output", type=local_path, required=True, help="the table to write, a .csv")


def run(args: argparse.Namespace) -> int:
    """Writes the table; returns 0, or 2 if nothing is annotated or `--output` is not a new .csv.

    Raises:
        UserError: if they cannot be read.
    """
    folder = args.directory
    if args.output.suffix.lower() != ".csv" or args.output.exists():
        return refuse(f"--output {args.output} must be a new .csv file")
    found = [
        (one_form(path), file, set(map(one_form, names)))
        for read in (_coco, _voc, _yolo)
        for path, file, names in read(folder)
    ]
    if not found:
        return refuse(
            f"{folder} has no annotations; expected COCO .json, VOC .xml, or YOLO .txt in a folder "
            "labels beside images, with data.yaml or classes.txt; other tools export COCO"
        )
    if wrong := sorted(name for *_, names in found for name in names if SEPARATOR in name):
        return refuse(f"the class {wrong[0]!a} has a {SEPARATOR} in its name; rename it")
    labels: dict[tuple[str, str], set[str]] = {}
    for path, file, names in found:
        splits = re.findall(SPLIT_NAME, file.relative_to(folder).as_posix().lower())
        labels.setdefault((path, splits[-1] if splits else ""), set()).update(names)
    has_splits = all(split for _, split in labels)
    rows = [(path, SEPARATOR.join(sorted(names)) or NONE, split)
            for (path, split), names in sorted(labels.items())]  # fmt: skip
    with args.output.open("x", encoding="utf-8", newline="") as file:
        columns = slice(2 + has_splits)
        csv.writer(file).writerows(row[columns] for row in [("path", "label", "split"), *rows])
    print(
        f"{args.output} has {len(labels):,} images{'' if has_splits else ', without their splits'}."
        f" Build with --labels {args.output} --label_separator '{SEPARATOR}'"
    )
    return 0


@contextlib.contextmanager
def _named(file: Path, expected: str) -> Iterator[None]:
    """Adds the file's name to the error of content that cannot be read."""
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, ElementTree.ParseError,
            yaml.YAMLError) as error:  # fmt: skip
        why = " ".join(str(error).split()) or type(error).__name__
        text = f"annotations cannot be read: {file}: expected {expected}, received {why}"
        raise UserError(text) from None


def _known(name_of: Mapping[Any, Any], code: Any, what: str, of: str) -> Any:
    """Returns what a code stands for, or raises a ValueError that says where it is."""
    try:
        return name_of[code]
    except KeyError:
        known = ", ".join(map(str, list(name_of)[:10])) or "none"
        raise ValueError(f"the {what} {code!r} of {of}; known are {known}") from None


def _path_of(folder: Path, name: str, *beside: Path) -> str:
    """Returns an image's path in the folder; the end of it if none of these folders has it."""
    for place in beside:
        if (place / name).is_file():
            return (place / name).relative_to(folder).as_posix()
    return name


def _coco(folder: Path) -> Iterator[_Row]:
    """Yields the images of each JSON that has categories; one of captions has none."""
    for file in sorted(folder.rglob("*.json")):
        with _named(file, "annotations in COCO"):
            content = json.loads(file.read_bytes())
            if not isinstance(content, dict) or not {"images", "categories"} <= content.keys():
                continue
            rows = _rows_of_coco(content)
        for name, names in rows:
            yield _path_of(folder, name, file.parent), file, names


def _rows_of_coco(content: Mapping[str, Any]) -> list[tuple[str, set[str]]]:
    """Returns the name of each image, and those of the classes in it."""
    name_of = _by_id(content["categories"], "name")
    images = _by_id(content["images"], "file_name")
    names: dict[object, set[str]] = {image: set() for image in images}
    for entry in content.get("annotations") or ():
        of = f"annotation {entry.get('id', '')}".strip()
        image = _known(images, entry["image_id"], "image_id", of)
        code = entry["category_id"]
        names[entry["image_id"]].add(_known(name_of, code, "category_id", f"the image {image}"))
    return [(images[image], names[image]) for image in images]


def _by_id(entries: Iterable[Mapping[str, Any]], key: str) -> dict[object, str]:
    """Returns the name of each entry by its id; two entries of one id would be mixed up."""
    names: dict[object, str] = {}
    for entry in entries:
        code, name = entry["id"], entry[key]
        if not isinstance(name, str) or names.setdefault(code, name) != name:
            raise ValueError(f"the {key} {name!r} with the id {code!r}, which should be its own")
    return names


def _voc(folder: Path) -> Iterator[_Row]:
    """Yields the image of each XML, which lies beside it or in the usual folder."""
    told = dict[tuple[str, Path], str]()
    for file in sorted(folder.rglob("*.xml")):
        with _named(file, "annotations in VOC"):
            root = ElementTree.fromstring(file.read_bytes())
            if root.tag != "annotation":
                continue
            name = root.findtext("filename") or file.stem
            names = {(entry.findtext("name") or "").strip() for entry in root.iter("object")}
            if "" in names:
                raise ValueError(f"an object without a name in the image {name}")
            if (first := told.setdefault((name, file.parent), file.name)) != file.name:
                raise ValueError(f"the filename {name}, which {first} has, too")
        above = file.parent.parent
        path = _path_of(folder, name, file.parent, above / "JPEGImages", above / "images")
        yield path, file, names


def _yolo(folder: Path) -> Iterator[_Row]:
    """Yields the image of each text in `labels`, and the pictures in `images` without one.

    The names of its codes are in another file: `data.yaml`, with a list or a mapping called names,
    or `classes.txt`, a name a line.
    """
    names: dict[str, str] = {}
    lists = sorted(folder.rglob("classes.txt"))
    for file in [*sorted([*folder.rglob("*.yaml"), *folder.rglob("*.yml")]), *lists]:
        with _named(file, "names of classes in YAML, or a name a line"):
            found = _names_in(file)
            if names and found and names != found:
                raise ValueError("other names than in another file; give one dataset's folder")
        names = names or found
    texts = sorted({*folder.rglob("labels/**/*.txt")} - {*lists}) if names else []
    told = set[str]()
    for file in texts:
        # The picture lies in `images`, under the same name with an ending of its own.
        head, _, tail = f"/{_stem(folder, file)}".rpartition("/labels/")
        path = f"{head}/images/{tail}".lstrip("/")
        with _named(file, "a code of a class and numbers in each line"):
            lines = file.read_text("utf-8-sig").splitlines()
            codes = {line.split()[0] for line in lines if line.strip()}
            classes = {_known(names, code, "code", f"the image {path}") for code in codes}
        told.add(path)
        yield path, file, classes
    # A picture without a text shows none of the classes.
    for file in sorted(folder.rglob("images/**/*")) if texts else []:
        path = _stem(folder, file)
        head, _, tail = f"/{path}".rpartition("/images/")
        has_texts = (folder / f"{head}/labels/{tail}".lstrip("/")).parent.is_dir()
        if path not in told and has_texts and file.suffix.lower() in IMAGE_SUFFIXES:
            yield path, file, set()


def _stem(folder: Path, file: Path) -> str:
    return file.relative_to(folder).with_suffix("").as_posix()


def _names_in(file: Path) -> dict[str, str]:
    """Returns the names of classes by code, empty if a YAML file has none."""
    text = file.read_bytes()
    named: Any = []
    if file.name == "classes.txt":
        named = text.decode("utf-8-sig").rstrip().splitlines()
    elif b"names" in text:
        # As texts: YAML takes yes, no, on and 1 for something else.
        content = yaml.load(text, Loader=yaml.BaseLoader)
        named = content.get("names", []) if isinstance(content, dict) else []
    if not isinstance(named, list | dict):
        raise ValueError(f"{named!r} for names, which should be a list or a mapping")
    pairs = named.items() if isinstance(named, dict) else enumerate(named)
    # A name that is missing would move those behind it.
    names = {str(code): name.strip() if isinstance(name, str) else "" for code, name in pairs}
    if not all(names.values()):
        raise ValueError(f"a class without a name in {named!r}")
    return names


COMMAND = Command(
    name="labels_from",
    purpose="write a table of labels from COCO, VOC or YOLO",
    add_arguments=add_arguments,
    run=run,
)
