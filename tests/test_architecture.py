"""Which package imports which, and what importing one loads."""

import ast
import json
import sys

import builds
import pytest
from builds import ROOT

PACKAGES = ("pipelines", "tfrecord_io", "train")
MODULES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]

#: What no module of a package imports, not even inside a function.
FORBIDDEN = {
    "pipelines": {"train", "tensorflow", "keras", "torch"},
    "tfrecord_io": {"pipelines", "train", "apache_beam", "keras"},
    "train": {"pipelines", "apache_beam"},
}
#: Modules that may import an optional feature from `extras/`.
COMMANDS = [
    *("build_tfrecords.py", "__main__.py", "run.py", "trainer.py"),
    *("evaluate.py", "predict.py", "benchmark.py"),
]
#: The command line of the build.
COMMAND_LINE = ROOT / "pipelines" / "options.py"


def imports_of(path):
    """Returns the names that a module imports, such as `tfrecord_io.format.manifest.Manifest`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_a_module_imports_only_what_its_package_and_its_place_allow():
    wrong = []
    for path in MODULES:
        forbidden = FORBIDDEN[path.relative_to(ROOT).parts[0]]
        is_command = path.name in COMMANDS or path == COMMAND_LINE
        may_import_extras = is_command or path.parent.name == "extras"
        wrong += [
            (path, name)
            for name in imports_of(path)
            if name.split(".")[0] in forbidden or (".extras" in name and not may_import_extras)
        ]
    assert wrong == []


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import tfrecord_io", {"apache_beam", "tensorflow", "keras", "pipelines", "train"}),
        ("import scan_tfrecords", {*PACKAGES, "apache_beam", "tensorflow", "numpy"}),
        ("import pipelines.build_tfrecords", {"apache_beam", "tensorflow", "keras", "train"}),
    ],
)
def test_an_import_loads_no_framework_that_it_does_not_need(program, absent):
    program += "\nimport json, sys\nprint(json.dumps([*{n.split('.')[0] for n in sys.modules}]))"
    done = builds.run_command([sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr
    assert not absent & set(json.loads(done.stdout))
