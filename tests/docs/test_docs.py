"""The pages are true: what they name exists, their links lead somewhere, and their code runs.

A block of code runs in the order of its page, in a copy of the repository with stand-ins for the
data that the pages name. One that cannot run there says why, in a comment before it:
`<!-- not run: it needs a Kaggle account -->`.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builds import parsed, write_csv
from image_files import jpeg, png, write_tree
from listed import Listed, drawn
from PIL import Image

import scan_tfrecords
from pipelines.listing.classes import with_classes
from pipelines.listing.listing import list_images
from pipelines.report import summary
from pipelines.sources.source import Member

ROOT = Path(__file__).parents[2]
OWN_PAGES = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")]
PAGES = sorted([*OWN_PAGES, *(ROOT / "docs").rglob("*.md")])
PACKAGES = ("pipelines", "tfrecord_io", "train")
#: Messages of Python and the operating system on the page of problems.
OF_THE_SYSTEM = {
    "No module named 'pipelines'",
    "ensurepip is not available",
    "No space left on device",
    "Bus error",
    "certificate",
}


def blocks(page):
    """Returns the blocks of a page in order: `language`, `code`, and a `reason` not to run it."""
    return [
        *re.finditer(
            r"(?:<!-- not run: (?P<reason>[^>]*) -->\n)?"
            r"^ *```(?P<language>\w*)\n(?P<code>.*?)^ *```$",
            page.read_text(encoding="utf-8"),
            re.DOTALL | re.MULTILINE,
        )
    ]


def _anchors(page):
    """Returns the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_files_exist_and_every_block_has_a_language_or_a_reason(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+/[\w/]*(?:\.py|/))`", text) if page in OWN_PAGES else []
    assert [name for name in named if not (ROOT / name).exists()] == []
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        target = (page.parent / path).resolve() if path else page
        if path not in ("commands.md", "api.md"):  # `make docs` writes them
            assert target.exists(), path
            assert not anchor or anchor in _anchors(target), f"{path}#{anchor}"
    for block in blocks(page):
        assert block["language"] in {"text", "json", "sh", "python"}, block["code"]
        assert block["reason"] is None or len(block["reason"].split()) >= 3, block["code"]


def test_the_tree_of_the_repository_has_each_package_and_only_what_exists():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree, folder = set(), ""
    for line in re.search(r"```text\n(.*?)```", page, re.DOTALL)[1].splitlines():
        if not line.startswith(" "):
            folder = line.split()[0] if line.split()[0].endswith("/") else ""
        tree.add((folder if line.startswith(" ") else "") + line.split()[0])
    assert [path for path in tree if not (ROOT / path).exists()] == []
    modules = (path for package in PACKAGES for path in (ROOT / package).glob("**/__init__.py"))
    assert {f"{path.parent.relative_to(ROOT).as_posix()}/" for path in modules} <= tree


#: Flags of pip, make, jq and Beam that pages name beside those of the commands.
OTHER_FLAGS = {"--direct_num_workers", "--runner", "--upgrade", "--version"}


def test_every_flag_that_a_page_names_is_one_of_a_command(capsys):
    for command in scan_tfrecords.COMMANDS:
        with contextlib.suppress(SystemExit):
            scan_tfrecords.main([command, "--help"])
    known = set(re.findall(r"--[a-z_]+", capsys.readouterr().out)) | OTHER_FLAGS
    for page in PAGES:
        if page.name not in ("clusters.md", "containers.md"):  # flags of other tools
            text = page.read_text(encoding="utf-8")
            assert set(re.findall(r"(?<![\w-])--[a-z]+(?:_[a-z]+)*\b", text)) <= known, page.name


def test_every_message_that_the_page_of_problems_explains_exists():
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    sources = [ROOT / "Makefile", *(p for f in PACKAGES for p in (ROOT / f).rglob("*.py"))]
    printed = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    messages = set(re.findall(r"\*\*`([^`]+)`\*\*", page))
    assert len(messages) > 12
    assert {message for message in messages if message not in printed} == OF_THE_SYSTEM


def _run(clone, *command):
    """Runs a command in a clone as a user would, in the environment of these tests."""
    settings = ("VENV", "INPUT", "OUTPUT", "WORKDIR", "IMAGE_SIZE")
    env = {name: value for name, value in os.environ.items() if name not in settings}
    path = f"{clone / '.venv' / 'bin'}{os.pathsep}{env['PATH']}"
    # One epoch, on an eighth of the scans, whatever a page says: no network need be good.
    # .ci/run draws all of them with `make run`.
    command = [re.sub(r"--epochs \d+", "--epochs 1", word) for word in command]
    command = [word.replace("synthetic-3200", "synthetic-400") for word in command]
    env |= {"PATH": path, "PYTHONPATH": str(clone), "EPOCHS": "1", "NUM_EXAMPLES": "400"}
    env |= {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        command, cwd=clone, env=env, capture_output=True, text=True, check=False, timeout=1800
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def _run_blocks(page, clone):
    """Runs the shell blocks of a page in order, then its Python blocks as one program."""
    runnable = [block for block in blocks(page) if block["reason"] is None]
    for block in runnable:
        if block["language"] == "sh":
            _run(clone, "bash", "-euo", "pipefail", "-c", block["code"])
    program = "\n".join(block["code"] for block in runnable if block["language"] == "python")
    if program:  # in a file, because TensorFlow compiles functions from their source
        (clone / "page.py").write_text(program, encoding="utf-8")
        _run(clone, sys.executable, "page.py")


def _clone(folder):
    """Returns a new copy of the repository, with the environment of these tests as its `.venv`."""
    left_out = shutil.ignore_patterns(".git", ".venv*", "data", "runs", "build", ".*_cache")
    shutil.copytree(
        ROOT,
        folder,
        ignore=lambda path, names: left_out(path, names) if path == str(ROOT) else (),
    )
    environment = folder / ".venv"
    environment.mkdir()
    for path in Path(sys.prefix).iterdir():
        (environment / path.name).symlink_to(path)
    for stamp in ("installed-run", "installed"):
        (environment / stamp).unlink(missing_ok=True)
        (environment / stamp).touch()  # or `make` would install into the tests' environment
    return folder


def _drawn_trees():
    """Returns the paths of each drawn tree, its command, and what the build prints of it."""
    codes = [block["code"] for block in blocks(ROOT / "docs" / "sources.md")]
    places = [place for place, code in enumerate(codes) if "{1.." in code]
    for tree, command, said in (codes[place : place + 3] for place in places):
        yield [*drawn(tree)], shlex.split(command)[2:], said.splitlines()


def test_the_build_reads_the_drawn_trees_as_the_page_says():
    trees = list(_drawn_trees())
    assert len(trees) == 3
    for paths, flags, said in trees:
        chosen = parsed(flags)
        folder = f"{chosen.source.input}/"
        members = [Member(path.removeprefix(folder), 9, 0, 9, n) for n, path in enumerate(paths)]
        images = list_images(Listed(members), chosen.listing)
        assert summary.layout_lines(with_classes(images, chosen.listing)) == said


def _write_trees(clone):
    for paths, _, _ in _drawn_trees():
        for number, path in enumerate(paths):
            (clone / path).parent.mkdir(parents=True, exist_ok=True)
            (clone / path).write_bytes(jpeg(number, 40, 48))


def _write_table(clone):
    """Writes labels.csv, with columns for every kind of label that the pages name."""
    rows = [
        {"path": path.relative_to(clone / "scans").as_posix(), "label": path.parts[-2],
         "split": path.parts[-3], "effusion": place % 2, "mass": place % 3 // 2, "age": 40 + place,
         "grade": place % 3}
        for place, path in enumerate(sorted(clone.glob("scans/*/*/*/*.jpeg")))
    ]  # fmt: skip
    write_csv(clone / "labels.csv", rows)


def _write_foreign_forms(clone):
    """Writes what the page on the scope converts: the forms that a build does not read."""
    pictures = {f"{number}.png": png(number) for number in range(4)}
    shutil.make_archive(str(clone / "scans"), "tar", write_tree(clone / "pictures", pictures))
    rows = [{"image": {"bytes": data}, "label": 1} for data in pictures.values()]
    pq.write_table(pa.Table.from_pylist(rows), clone / "train.parquet")
    coco = {
        "images": [{"id": number, "file_name": name} for number, name in enumerate(pictures)],
        "categories": [{"id": 0, "name": "fluid"}, {"id": 1, "name": "drusen"}],
        "annotations": [{"image_id": number, "category_id": number % 2} for number in range(3)],
    }
    (clone / "annotations.json").write_text(json.dumps(coco))
    (clone / "labels.json").write_text('[{"path": "0.png", "label": "CNV"}]')
    (clone / "voc").mkdir()
    voc = "<annotation><filename>0.png</filename><object><name>fluid</name></object></annotation>"
    (clone / "voc" / "0.xml").write_text(voc)
    (clone / "yolo" / "labels").mkdir(parents=True)
    (clone / "yolo" / "labels" / "0.txt").write_text("1 0.5 0.5 0.1 0.1\n")
    (clone / "volumes").mkdir()
    pages = [Image.new("L", (8, 8), level) for level in (0, 90)]
    pages[0].save(clone / "volumes" / "a.tif", save_all=True, append_images=pages[1:])
    (clone / "deep").mkdir()
    Image.fromarray(np.full((8, 8), 4095, np.uint16)).save(clone / "deep" / "a.png")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Returns a clone with stand-ins for the data that the pages name."""
    clone = _clone(tmp_path_factory.mktemp("pages") / "clone")
    build = (sys.executable, "pipelines/build_tfrecords.py")
    _run(clone, *build, "--source", "synthetic", "--num_examples", "160", "--output", "data/drawn")
    tree = clone / "data" / "downloads" / "synthetic-160-seed-0"
    (clone / "scans").symlink_to(tree)
    shutil.make_archive(str(clone / "kermany2018"), "zip", tree)
    shutil.rmtree(clone / "data" / "drawn")
    _write_table(clone)
    patient = next(clone.glob("scans/*/train/*/*")).name.split("-")[1]
    write_csv(clone / "withdrawn.csv", [{"patient": patient}])
    _write_trees(clone)
    _write_foreign_forms(clone)
    archive = ("--source", "archive", "--input", "kermany2018.zip", "--splits", "patient")
    small = ("--image_size", "64")  # a network of the default size takes minutes
    _run(clone, *build, *archive, *small, "--output", "data/oct")
    other = ("--source", "synthetic", "--num_examples", "80", "--seed", "1")
    _run(clone, *build, *other, *small, "--output", "data/other")
    train = (sys.executable, "train/run.py", "--data", "data/oct", "--workdir", "runs/oct")
    _run(clone, *train, "--epochs", "1")
    return clone


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_notebook_runs(clone):
    notebook = json.loads((clone / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    (clone / "docs" / "cells.py").write_text("\n".join(cells), encoding="utf-8")
    _run(clone / "docs", sys.executable, "cells.py")


def test_what_the_page_on_the_scope_converts_is_what_a_build_takes(tmp_path):
    _write_foreign_forms(tmp_path)
    for block in blocks(ROOT / "docs" / "scope.md"):
        word = {"sh": ["bash", "-ec"], "python": [sys.executable, "-c"]}[block["language"]]
        subprocess.run([*word, block["code"]], cwd=tmp_path, check=True)
    made = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")}
    assert {"0.png", "from-parquet/1/3.png", "pages/a-1.png", "8-bits/a.png"} <= made
    assert Image.open(tmp_path / "8-bits" / "a.png").getextrema() == (255, 255)
    tables = {path.name: path.read_text().splitlines() for path in tmp_path.glob("*.csv")}
    assert tables["coco.csv"][:3] == ["path,fluid,drusen", "0.png,1,0", "1.png,0,1"]
    assert tables["voc.csv"] == ["path,fluid", "0.png,1"]
    assert tables["yolo.csv"] == ["path,fluid,drusen", "0,0,1"]
    assert tables["from-json.csv"] == ['"path","label"', '"0.png","CNV"']


NEWCOMER = [ROOT / "README.md", ROOT / "docs" / "tutorial.md"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_newcomer_can_run_every_block_of_the_readme_and_the_tutorial(tmp_path):
    clone = _clone(tmp_path / "clone")
    for page in NEWCOMER:
        _run_blocks(page, clone)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if page not in NEWCOMER and any(b["reason"] is None for b in blocks(page))
    ],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_every_block_of_a_page_runs(page, clone):
    _run_blocks(page, clone)
