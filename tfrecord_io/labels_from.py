"""`python -m tfrecord_io labels_from FOLDER --output labels.csv`: a table from annotations.

COCO (a JSON with images, annotations and categories), Pascal VOC (an XML for each image) and YOLO
(a text for each image, with the names in a .yaml) say where things are in an image. Here it counts
which classes occur: a row for each image, with the names of its classes and, if its folder or file
says so, its split.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from tfrecord_io.format.kinds import NONE, SEPARATOR
from tfrecord_io.format.schema import SPLIT_NAME
from tfrecord_io.terminal.address import local_path
from tfrecord_io.terminal.command import Command
from tfrecord_io.terminal.printing import printable, refuse
from tfrecord_io.terminal.spelling import one_form

#: The path of an image, the file that describes it, and the names of the classes in it.
_Row = tuple[str, Path, set[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add, folder = parser.add_argument, "COCO, VOC or YOLO files"
    add("directory", type=local_path, metavar="FOLDER", help=folder)
    add("--output", type=local_path, required=True, help="the table to write, a .csv")


def run(args: argparse.Namespace) -> int:
    """Writes the table; returns 0, or 2 if there are no annotations or they cannot be read."""
    folder = args.directory
    try:
        found = [
            (one_form(path), file, set(map(one_form, names)))
            for read in (_coco, _voc, _yolo)
            for path, file, names in read(folder)
        ]
    except (ValueError, KeyError, TypeError, IndexError, ElementTree.ParseError) as error:
        return refuse(f"annotations in {folder} cannot be read: {printable(str(error))}")
    if not found:
        return refuse(f"{folder} has no annotations; expected COCO .json, VOC .xml or YOLO .txt")
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


def _path_of(folder: Path, name: str, *beside: Path) -> str:
    """Returns an image's path in the folder; the end of it if none of these folders has it."""
    for place in beside:
        if (place / name).is_file():
            return (place / name).relative_to(folder).as_posix()
    return name


def _coco(folder: Path) -> Iterator[_Row]:
    """Yields the images of each JSON that has categories; one of captions has none."""
    for file in sorted(folder.rglob("*.json")):
        content = json.loads(file.read_bytes())
        if not isinstance(content, dict) or not {"images", "categories"} <= content.keys():
            continue
        name_of = {entry["id"]: entry["name"] for entry in content["categories"]}
        names: dict[object, set[str]] = {image["id"]: set() for image in content["images"]}
        for entry in content.get("annotations", ()):
            names[entry["image_id"]].add(name_of[entry["category_id"]])
        for image in content["images"]:
            path = _path_of(folder, image["file_name"], file.parent)
            yield path, file, names[image["id"]]


def _voc(folder: Path) -> Iterator[_Row]:
    """Yields the image of each XML, which lies beside it or in the usual folder."""
    for file in sorted(folder.rglob("*.xml")):
        root = ElementTree.fromstring(file.read_bytes())
        if root.tag == "annotation":
            name = root.findtext("filename") or file.stem
            above = file.parent.parent
            path = _path_of(folder, name, file.parent, above / "JPEGImages", above / "images")
            yield path, file, {entry.findtext("name") or "" for entry in root.iter("object")}


def _yolo(folder: Path) -> Iterator[_Row]:
    """Yields the image of each text in `labels`; the names of its codes are in another file.

    That is `data.yaml`, with a list or a mapping called names, or `classes.txt`, a name a line.
    """
    names: list[str] = []
    for file in sorted([*folder.rglob("*.yaml"), *folder.rglob("*.yml")]):
        text = file.read_text("utf-8")
        if listed := re.search(r"(?ms)^names:\s*\[(.*?)\]", text):
            names = listed[1].split(",")
        elif block := re.search(r"(?m)^names:[ ]*\n((?:[ ]*(?:-|\d+:).*\n?)+)", text):
            names = re.sub(r"(?m)^\s*(-|\d+:)", "", block[1]).splitlines()
    for file in folder.rglob("classes.txt"):
        names = file.read_text("utf-8").splitlines()
    names = [name.strip(" '\"\n") for name in names]
    texts_of_images = set(folder.rglob("labels/**/*.txt")) - set(folder.rglob("classes.txt"))
    for file in sorted(texts_of_images) if names else []:
        lines = file.read_text("utf-8").splitlines()
        codes = {int(line.split()[0]) for line in lines if line.strip()}
        # The picture lies in `images`, under the same name with an ending of its own.
        path = file.relative_to(folder).with_suffix("").as_posix()
        head, _, tail = f"/{path}".rpartition("/labels/")
        yield f"{head}/images/{tail}".lstrip("/"), file, {names[code] for code in codes}


COMMAND = Command(
    name="labels_from",
    purpose="write a table of labels from COCO, VOC or YOLO",
    add_arguments=add_arguments,
    run=run,
)
