"""Which share of small faults do the tests catch in the modules on which a dataset's truth depends?

    pip install cosmic-ray
    python benchmarks/mutants.py --mutants 50

Each mutant is one change of the module by cosmic-ray, such as another comparison, in a copy of the
repository. Changes of annotations and docstrings alone are left out. A mutant that no test catches
is printed as a difference; some of them change nothing that can be seen.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.util
import itertools
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).resolve().parents[1]
#: The tests of each module, a second or two; those that fail soonest stand first.
TESTS = {
    "pipelines/planning/splits.py": "tests/pipelines/planning/test_splits.py "
    "tests/pipelines/test_options.py",
    "tfrecord_io/reading/order.py": "tests/tfrecord_io/reading/test_order.py "
    "tests/tfrecord_io/reading/test_batches.py",
    "tfrecord_io/format/schema.py": "tests/tfrecord_io/format/test_schema.py",
    "tfrecord_io/auditing/leak_checks.py": "tests/tfrecord_io/auditing/test_leak_checks.py",
    "tfrecord_io/stores/replace.py": "tests/tfrecord_io/stores/test_replace.py",
}
#: Seconds after which a mutant that loops for ever counts as caught.
LIMIT = 60


def mutants(code: str, seed: int) -> Iterator[str]:
    """Yields changed sources in random order; each differs from `code` in one operation."""
    nodes = list(ast_nodes(get_ast(code)))
    operators = [plugins.get_operator(name) for name in plugins.operator_names()]
    changes = [
        (operator(), occurrence)
        for operator in operators
        if not operator.arguments()
        for occurrence in range(sum(len([*operator().mutation_positions(n)]) for n in nodes))
    ]
    random.Random(seed).shuffle(changes)
    original = _without_annotations(code)
    for operator, occurrence in changes:
        mutant = mutate_code(code, operator, occurrence)
        if mutant is not None and _without_annotations(mutant) not in (None, original):
            yield mutant


def _without_annotations(code: str) -> str | None:
    """Returns the syntax tree without annotations; None if there is none, as after `{**other}`."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if getattr(node, field, None) is not None:
                setattr(node, field, ast.Constant(None))
    return ast.dump(tree)


def is_caught(tree: Path, module: str) -> bool:
    """Returns whether a test of the module fails in the tree."""
    # Bytecode stands for a source of the same length and second.
    Path(importlib.util.cache_from_source(str(tree / module))).unlink(missing_ok=True)
    plain = ("-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow")
    command = (sys.executable, "-m", "pytest", "-x", "-q", *plain, *TESTS[module].split())
    try:
        done = subprocess.run(command, cwd=tree, capture_output=True, check=False, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> None:
    """Tries a sample of the mutants of each module, and prints what was caught."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=50, help="how many of each module")
    parser.add_argument("--modules", nargs="+", default=TESTS, choices=TESTS, metavar="FILE")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        listed = subprocess.run(("git", "ls-files"), cwd=ROOT, capture_output=True, check=True)
        for name in listed.stdout.decode().splitlines():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
        for module in chosen.modules:
            code, caught = (ROOT / module).read_text(encoding="utf-8"), 0
            if is_caught(tree, module):
                sys.exit(f"{module}: its tests fail without any change")
            sample = list(itertools.islice(mutants(code, chosen.seed), chosen.mutants))
            for mutant in sample:
                (tree / module).write_text(mutant, encoding="utf-8")
                if is_caught(tree, module):
                    caught += 1
                    continue
                lines = code.splitlines(), mutant.splitlines()
                difference = difflib.unified_diff(*lines, n=0, lineterm="")
                print(module, *list(difference)[2:], sep="\n", flush=True)
            (tree / module).write_text(code, encoding="utf-8")
            print(f"{module}: {caught} of {len(sample)} caught", flush=True)


if __name__ == "__main__":
    main()
