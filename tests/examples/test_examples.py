"""Every program in examples/ runs, and prints what it says it prints."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def case(path):
    """An example; one that uses Spark runs where the other tests of Spark do."""
    uses_spark = path.name.startswith("spark_")
    marks = [pytest.mark.spark, pytest.mark.xdist_group("spark")] if uses_spark else []
    return pytest.param(path, marks=marks, id=path.name)


def test_every_example_is_listed():
    """The page in examples/ has each of them, and there are some."""
    page = (ROOT / "examples" / "README.md").read_text()
    assert len(EXAMPLES) >= 4
    assert [] == [path.name for path in EXAMPLES if f"({path.name})" not in page]


@pytest.mark.parametrize("path", [case(path) for path in EXAMPLES])
def test_example_prints_what_it_says(path, tmp_path, monkeypatch, capsys, request):
    """The lines below `Prints:` at its head, and no others."""
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("spark")
    head = ast.get_docstring(ast.parse(path.read_text()))
    promised = [line.strip() for line in head.partition("Prints:\n")[2].splitlines()]
    assert promised
    monkeypatch.setattr(sys, "argv", [str(path), str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert promised == capsys.readouterr().out.splitlines()
