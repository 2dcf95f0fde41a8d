"""The source itself: small files, small functions, good names, documents, twins, cited promises."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import cordwood
from cordwood import sync

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "cordwood"
FILES = sorted(SOURCE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


def name_of(path):
    """A short name for reports."""
    return path.relative_to(ROOT).as_posix()


def module_of(path):
    """The module that a source file is."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def functions_in(path):
    """Every function and method of a file."""
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def test_there_is_source_to_look_at():
    """The other tests mean something."""
    assert 30 < len(FILES)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_is_one_idea(path):
    """No source file has more than 600 lines."""
    assert FILE_LINES_MAX >= len(path.read_text().splitlines())


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_function_fits_a_screen(path):
    """No function has more than 80 lines, documentation and comments included."""
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in functions_in(path)
        if node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    }
    assert {} == long


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_module_is_named_after_what_it_is(path):
    """No module or package is called utils, helpers, common, manager or misc."""
    segments = set(path.relative_to(SOURCE).with_suffix("").parts)
    words = {word for segment in segments for word in segment.split("_")}
    assert set() == FORBIDDEN_NAMES & words


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_module_says_what_it_is(path):
    """Every module opens with a docstring of at least a sentence."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert re.search(r"\w+ \w+.*[.:;)]", docstring, re.DOTALL), docstring


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_unfinished_business(path):
    """No note to come back without a reason: TODO, FIXME and XXX are not left in the source."""
    found = re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", path.read_text())
    assert [] == found


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_every_test_says_its_behaviour(path):
    """Every test has a docstring, and no test is switched off."""
    text = path.read_text()
    silent = [
        node.name
        for node in functions_in(path)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert [] == silent
    assert [] == re.findall(r"pytest\.mark\.(?:skip|xfail)\(", text)


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_no_test_sleeps(path):
    """No test waits for real time by itself; what it runs in another process may."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert [] == [ast.unparse(call) for call in calls if ast.unparse(call.func) == "time.sleep"]


# What is exported.


def test_what_is_exported_exists_once():
    """`__all__` is sorted, without repetition, and everything in it is there."""
    names = cordwood.__all__
    assert sorted(set(names)) == sorted(names)
    assert [] == [name for name in names if not hasattr(cordwood, name)]


@pytest.mark.parametrize("name", [n for n in cordwood.__all__ if not n.startswith("__")])
def test_what_is_exported_is_documented(name):
    """Each exported name has a docstring of its own."""
    exported = getattr(cordwood, name)
    assert exported.__doc__
    assert exported.__doc__.strip()
    for attribute, value in vars(exported).items():
        if inspect.isfunction(value) and not attribute.startswith("_"):
            assert value.__doc__, f"{name}.{attribute}"


DESIGNED = {
    "AlreadyExistsError",
    "CollectedError",
    "ConflictError",
    "CordwoodError",
    "CorruptionError",
    "InvalidInputError",
    "LimitError",
    "Limits",
    "Log",
    "NotFoundError",
    "Options",
    "Setsum",
    "StateError",
    "Store",
    "StoreError",
}


def test_the_designed_names_are_exported():
    """The names that users rely on are all there."""
    assert set() == DESIGNED - set(cordwood.__all__)


def test_every_error_is_exported():
    """Whoever catches an error can name it."""
    errors = importlib.import_module("cordwood.base.errors")
    kinds = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, cordwood.CordwoodError)
    }
    assert set() == kinds - set(cordwood.__all__)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_module_can_be_imported(path):
    """Alone, and without a complaint."""
    if path.name != "__main__.py":
        importlib.import_module(module_of(path))


# Blocking twins.


TWINS = (
    "Collection",
    "Cursors",
    "Delta",
    "Fleet",
    "Index",
    "Log",
    "Pin",
    "Pipeline",
    "Reader",
    "Streams",
    "Table",
    "Topics",
    "Volume",
    "Writer",
)
TWIN_FUNCTIONS = (
    "collect_logs",
    "compact",
    "members",
    "roll_up_fleet",
    "scrub_log",
    "scrub_logs",
    "survey",
    "tend_volumes",
)
ONLY_BLOCKING = {name: {"append_soon"} if name == "Writer" else set() for name in TWINS}
"""What a blocking class has on top, because it has no futures to hand out."""

ONLY_ASYNC = {name: set() for name in TWINS} | {
    "Delta": {"begin", "commit", "look", "sync"},
    "Log": {"objects"},
    "Table": {"begin", "commit", "look", "sync"},
}
"""What makes sense on an event loop alone: the objects of a log, for tools that walk the tree; how
a compaction changes a table."""

CONTEXT = {"__aenter__": "__enter__", "__aexit__": "__exit__"}


def public(kind):
    """The public attributes that a class defines."""
    return {
        name: value
        for name, value in inspect.getmembers_static(kind)
        if not name.startswith("_") and not isinstance(value, (int, str))
    }


def parameters(kind, name):
    """Names, kinds and defaults, without `self`."""
    signature = inspect.signature(getattr(kind, name))
    return [(p.name, p.kind, p.default) for p in signature.parameters.values() if p.name != "self"]


@pytest.mark.parametrize("name", TWINS)
def test_a_class_and_its_twin_have_the_same_methods(name):
    """Whatever can be awaited can also be called, and nothing else."""
    of_async, of_sync = getattr(cordwood, name), getattr(sync, name)
    methods = {n for n, v in public(of_async).items() if callable(v) or isinstance(v, classmethod)}
    twins = {n for n, v in public(of_sync).items() if callable(v) or isinstance(v, classmethod)}
    assert methods - ONLY_ASYNC[name] == twins - ONLY_BLOCKING[name]
    properties = {n for n, v in public(of_async).items() if isinstance(v, property)}
    assert set() == properties - ONLY_ASYNC[name] - set(public(of_sync))
    for entered, twin in CONTEXT.items():
        assert hasattr(of_async, entered) == hasattr(of_sync, twin)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        (name, method)
        for name in TWINS
        for method, value in public(getattr(cordwood, name)).items()
        if (callable(value) or isinstance(value, classmethod)) and method not in ONLY_ASYNC[name]
    ],
)
def test_a_method_and_its_twin_take_the_same(name, method):
    """Same names, same kinds, same defaults."""
    assert parameters(getattr(cordwood, name), method) == parameters(getattr(sync, name), method)


@pytest.mark.parametrize("name", ["Delta", "Fleet", "Log", "Pipeline", "Table", "Volume"])
def test_a_class_and_its_twin_are_made_alike(name):
    """The constructors of what users make themselves are part of the API."""
    of_async, of_sync = getattr(cordwood, name), getattr(sync, name)
    assert parameters(of_async, "__init__") == parameters(of_sync, "__init__")


@pytest.mark.parametrize("name", TWIN_FUNCTIONS)
def test_a_function_and_its_twin_take_the_same(name):
    """Same names, same kinds, same defaults."""
    assert parameters(cordwood, name) == parameters(sync, name)


@pytest.mark.parametrize("name", [n for n in sync.__all__ if n not in (*TWINS, *TWIN_FUNCTIONS)])
def test_what_needs_no_twin_is_the_same_object(name):
    """Store, Options, Limits and the like serve both."""
    assert getattr(cordwood, name) is getattr(sync, name)


# Promises.


GUARANTEES = ROOT / "docs" / "guarantees.md"
PROMISED = (
    re.findall(r"^\*\*(G-\d+)\*\*", GUARANTEES.read_text(), re.MULTILINE)
    if GUARANTEES.is_file()
    else []
)


@pytest.mark.parametrize("promise", PROMISED)
def test_every_guarantee_is_cited_by_a_test(promise):
    """Each number in docs/guarantees.md stands behind an EVIDENCE-OF mark in some test."""
    cited = [
        name_of(path)
        for path in TESTS
        for line in re.findall(r"# EVIDENCE-OF: (.+)", path.read_text())
        if promise in re.findall(r"\bG-\d+\b", line)
    ]
    assert [] != cited
