"""Each power beside the way can be deleted, with the lines that name it, and the rest works."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from builds import ROOT

#: What proves the way of each package, and asks for no extra: a module and the words of its `main`.
CORE = {
    "pipelines": ("pytest", ["tests/tfrecord_io/format/test_golden.py", "-k", "always_wrote"]),
    "tfrecord_io": ("pytest", ["tests/tfrecord_io/auditing/test_audit.py", "-k", "found or limit"]),
    "train": ("train.run", ["--model=convnet", "--epochs=1", "--workdir=run", "--overwrite"]),
}
EXTRAS = sorted(
    path.relative_to(ROOT)
    for package in CORE
    for path in (ROOT / package / "extras").glob("*.py")
    if path.stem != "__init__"
)

#: A flag that an extra of the build declares.
FLAG = re.compile(r"^    (\w+): .* = flag\(", re.MULTILINE)

#: Imports what takes long, and then calls each `main` that it reads of in a fork of itself.
SERVER = """
import importlib, json, os, sys
sys.path.insert(0, os.getcwd())
for name in ("apache_beam", "tensorflow", "keras", "pyarrow.parquet", "pytest"):
    importlib.import_module(name)
for line in sys.stdin:
    child = os.fork()
    if not child:
        module, words, log = json.loads(line)
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        code = 1
        try:
            code = int(importlib.import_module(module).main(words))
        finally:
            sys.stdout.flush()
            sys.excepthook(*sys.exc_info()) if sys.exc_info()[0] else None
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Returns a copy of all that the commands and their tests need."""
    copy = tmp_path_factory.mktemp("tree")
    for name in (*CORE, "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("scan_tfrecords.py", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def server(tree):
    settings = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        cwd=tree,
        env={**os.environ, **settings},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.stdin.close()


def without_lines(text, extra):
    """Returns the text of a module without an extra in its imports, and its other lines."""
    for imported in re.findall(rf"^from \w+\.extras import .*\b{extra}\b.*$", text, re.MULTILINE):
        start, names = imported.split(" import ")
        others = ", ".join(name for name in names.split(", ") if name != extra)
        text = text.replace(imported, f"{start} import {others}" if others else "")
    named = rf"\b{extra}\.(?!py)|\bextras\.{extra}\b"
    return "\n".join(line for line in text.split("\n") if not re.search(named, line))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXTRAS, ids=str)
def test_without_an_extra_and_its_lines_the_rest_works(path, tree, server, built_dataset):
    package = path.parts[0]
    module, words = CORE[package]
    log = tree / "log"
    log.unlink(missing_ok=True)
    before = {tree / path: (tree / path).read_text()}
    commands = (file for folder in CORE for file in (tree / folder).glob("*.py"))
    for file in (*commands, tree / "scan_tfrecords.py"):
        text = file.read_text()
        if "extras" in text and (without := without_lines(text, path.stem)) != text:
            before[file] = text
            file.write_text(without)
    assert len(before) > 1
    (tree / path).unlink()
    words = [*words, f"--data={built_dataset}"] if package == "train" else words

    def run(module, words):
        print(json.dumps([module, words, str(log)]), file=server.stdin, flush=True)
        return int(server.stdout.readline())

    assert run(module, words) == 0, log.read_text()
    # A flag that did nothing would be worse than none.
    for name in FLAG.findall(before[tree / path]) if package == "pipelines" else ():
        words = ["--source=synthetic", f"--output={tree / 'out'}", f"--{name}=x"]
        assert run("pipelines.build_tfrecords", words) == 2
        assert f"unknown flag --{name}" in log.read_text()
    for file, text in before.items():
        file.write_text(text)
