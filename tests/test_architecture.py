"""Who may import whom, as the design says it."""

import ast
import functools
import graphlib
import itertools
import json
import subprocess
import sys

import builds
import pytest
from builds import ROOT

import scan_tfrecords

PACKAGES = ("pipelines", "tfrecord_io", "train")
MODULES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]

#: What no module of a package may import, not even inside a function.
FORBIDDEN = {
    "pipelines": {"train", "tensorflow", "keras", "torch", "tensorflow_datasets"},
    "tfrecord_io": {"pipelines", "train", "apache_beam", "keras", "tensorflow_datasets"},
    "train": {"pipelines", "apache_beam", "tensorflow_datasets"},
}

#: The floors, from the top. A module imports from its own floor and those below it.
FLOORS = (
    "pipelines.build_tfrecords",
    "pipelines.extras",
    "pipelines.engine",
    "pipelines.options",
    "pipelines.shards",
    "pipelines.report",
    "pipelines.planning",
    "pipelines.listing",
    "pipelines.sources",
    "pipelines.stores",
    "pipelines.workers",
    "pipelines.errors",
    "train.run",
    "train.evaluate",
    "train.benchmark",
    "train.predict",
    "train.export",
    "train.extras.compare",
    "train.powers",
    "train.extras",
    "train.training",
    "train.results",
    "train.networks",
    "train.kinds",
    "train.data",
    "train.machine",
    "tfrecord_io.__main__",
    "tfrecord_io.extras",
    "tfrecord_io.auditing",
    "tfrecord_io.pages",
    "tfrecord_io.reading",
    "tfrecord_io",
    "tfrecord_io.format",
    "tfrecord_io.decoding",
    "tfrecord_io.stores",
    "tfrecord_io.terminal",
)


def name_of(path):
    """Returns a module's name, such as `pipelines.planning.plan`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def imports_of(path):
    """Returns the names of all that a module imports, wherever and for whatever it does so."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def floor_of(name):
    """Returns the place in FLOORS of a module or of a name in one; None if it has none.

    The options of a room may stand on a lower floor than the room.
    """
    floors = [floor for floor in FLOORS if f"{name}.".startswith(f"{floor}.")]
    return FLOORS.index(max(floors, key=len)) if floors else None


def test_no_module_imports_what_its_package_must_not():
    for path in MODULES:
        forbidden = FORBIDDEN[path.relative_to(ROOT).parts[0]]
        found = {name.split(".")[0] for name in imports_of(path)} & forbidden
        assert not found, f"{path} imports {found}"


def test_only_the_stores_see_the_secrets_of_an_address():
    allowed = "tfrecord_io.stores", "tfrecord_io.terminal.address"
    others = [path for path in MODULES if not name_of(path).startswith(allowed)]
    assert [path for path in others if ".opened" in path.read_text(encoding="utf-8")] == []


def test_no_module_imports_from_a_floor_above_its_own():
    api = ROOT / "tfrecord_io" / "__init__.py"  # which names what lies on every floor
    for path in MODULES:
        floor = floor_of(name_of(path))
        if floor is None:
            is_room = name_of(path).split(".")[0] == "tfrecord_io" or path.name == "__init__.py"
            assert is_room, f"{path} stands on no floor"
        elif path != api:
            floors = {name: floor_of(name) for name in imports_of(path)}
            above = [name for name, place in floors.items() if place is not None and place < floor]
            assert above == [], f"{path} imports {above}"


def test_no_module_imports_a_command():
    commands = {module for module, _ in scan_tfrecords.COMMANDS.values()}
    for path in MODULES:
        found = commands & {part for name in imports_of(path) for part in prefixes(name)}
        assert not found, f"{path} imports {found}"


def test_only_a_command_or_the_list_of_powers_imports_an_extra():
    extras = {name_of(path) for path in MODULES if path.parent.name == "extras"}
    # All commands of the trainer get their extras from one list.
    commands = {module for module, _ in scan_tfrecords.COMMANDS.values()} | {"train.powers"}
    importers = {name: [] for name in extras if not name.endswith(".extras")}
    for path in MODULES:
        for extra in importers.keys() & imports_of(path):
            importers[extra].append(name_of(path))
    assert importers
    for extra in importers.keys() & commands:  # a command by itself, which the list of these names
        importers.pop(extra)
    for extra, names in importers.items():
        assert names, f"nothing imports {extra}"
        assert commands.issuperset(names), f"{names} import {extra}"
        packages = [name.split(".")[0] for name in names]
        assert len(packages) == len(set(packages)), f"{extra} is imported by {names}"


def test_no_modules_import_each_other_in_a_circle():
    api = ROOT / "tfrecord_io" / "__init__.py"  # which names what is in the modules
    modules = {name_of(path): path for path in MODULES if path != api}
    arrows = {
        name: {other for used in imports_of(path) for other in prefixes(used) & modules.keys()}
        for name, path in modules.items()
    }
    graphlib.TopologicalSorter(arrows).prepare()  # raises for a circle, and names its modules


def prefixes(name):
    """Returns a dotted name and all that it begins with, such as `a`, `a.b` and `a.b.c`."""
    return set(itertools.accumulate(name.split("."), "{}.{}".format))


def modules_after(program):
    """Returns the top-level packages that a fresh process holds after running a program."""
    program += (
        "\nimport json, sys\nprint(json.dumps(sorted({n.split('.')[0] for n in sys.modules})))"
    )
    done = builds.run_command([sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        (
            "from tfrecord_io import Manifest, RecordLayout, image_key, make_batches\n"
            "from tfrecord_io.auditing import verify\nfrom tfrecord_io.format import descriptions\n"
            "from tfrecord_io.decoding import preprocess\n"
            "list(make_batches('tests/testdata/golden_v1', split='train', batch_size=4))",
            ("tensorflow", "keras", "apache_beam", "pipelines", "train", "torch"),
        ),
        (
            "import scan_tfrecords\nscan_tfrecords.main(['--help'])",
            (*PACKAGES, "tensorflow", "apache_beam", "numpy"),
        ),
        (
            "from pipelines.planning import plan\nfrom pipelines.listing import listing",
            ("tensorflow", "keras", "apache_beam", "train"),
        ),
    ],
    ids=["a checker or another framework", "the list of commands", "planning"],
)
def test_what_needs_no_engine_and_no_framework_imports_none(program, absent):
    assert not modules_after(program) & {*absent}


def test_importing_the_command_does_nothing():
    program = (
        "import gc, threading\n"
        "frozen = gc.get_freeze_count()\n"  # Python 3.12 freezes objects of its own.
        "import pipelines.build_tfrecords\n"
        "import psutil\n"
        "assert gc.isenabled() and gc.get_freeze_count() == frozen\n"
        "assert not psutil.Process().children()\n"
        "assert threading.active_count() == 1"
    )
    assert "pyarrow" in modules_after(program)


def test_a_whole_build_loads_no_library_for_training(source_tree, tmp_path):
    flags = builds.arguments(source_tree, tmp_path / "out", "--max_reject_fraction=0.5")
    modules = modules_after(
        "from pipelines import build_tfrecords\n"
        f"build_tfrecords.build({[*flags, builds.IN_MEMORY]!r})"
    )
    assert "apache_beam" in modules
    assert not modules & {"tensorflow", "keras", "train", "torch"}


def test_no_module_is_a_drawer_for_whatever_fits_nowhere():
    drawers = {"utils", "util", "common", "helpers", "misc"}
    assert not [path for path in MODULES if path.stem in drawers]


def test_every_name_of_the_public_api_is_there():
    import tfrecord_io

    assert dir(tfrecord_io) == sorted(tfrecord_io.__all__)
    for name in tfrecord_io.__all__:
        assert getattr(tfrecord_io, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tfrecord_io.nothing


def test_no_test_or_build_has_left_files_in_the_repository():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    tops = {name.partition("/")[0] for name in listed.stdout.splitlines()}
    hidden = {name for name in tops if name.startswith(".")}
    assert tops - hidden <= {
        *PACKAGES, "tests", "benchmarks", "docs", "docker", "scripts", "requirements",
        "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md",
        "pyproject.toml", "scan_tfrecords.py", "setup.py", "zensical.toml",
    }  # fmt: skip
