"""The examples in the modules' docstrings are true."""

import ast
import doctest
import importlib

import pytest
from builds import ROOT

MODULES = [
    str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
    for package in ("pipelines", "tfrecord_io", "train")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>>" in (ast.get_docstring(ast.parse(path.read_text())) or "")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0
