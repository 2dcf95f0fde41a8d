"""Pages that list something list all of it."""

from __future__ import annotations

import re
from pathlib import Path

import cordwood
from cordwood.log import format as log_format
from cordwood.log.options import Options

ROOT = Path(__file__).parents[2]
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
ERRORS = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
FORMAT = (ROOT / "docs" / "formats" / "log.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")

NUMBERED = re.findall(r"^\*\*(G-\d+)\*\*", GUARANTEES, re.MULTILINE)
INVARIANTS = re.findall(r"^\| \*\*(LOG-\d+)\*\* \|", FORMAT, re.MULTILINE)


def test_guarantees_are_numbered():
    """Guarantees are numbered without a hole, and each says what proves it."""
    assert NUMBERED == [f"G-{n}" for n in range(1, len(NUMBERED) + 1)]
    assert len(re.findall(r"^\*Proved by .*\.\*$", GUARANTEES, re.MULTILINE)) == len(NUMBERED)


def test_citations_exist():
    """What a test cites as evidence is a guarantee or an invariant of the pages."""
    known = {*NUMBERED, *INVARIANTS}
    unknown = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for line in re.findall(r"# EVIDENCE-OF: (.+)", path.read_text(encoding="utf-8")):
            unknown += [
                f"{path.relative_to(ROOT)}: {name}"
                for name in re.findall(r"\b(?:G|LOG)-\d+", line)
                if name not in known
            ]
    assert unknown == []


def test_invariants_are_the_codes():
    """The format page has the invariants that log/format.py checks."""
    stated = re.findall(r"^(LOG-\d+) ", log_format.__doc__ or "", re.MULTILINE)
    assert INVARIANTS == stated


def test_every_error_is_explained():
    """The errors page names every class and every code."""
    classes = {
        name
        for name in cordwood.__all__
        if isinstance(kind := getattr(cordwood, name), type)
        and issubclass(kind, cordwood.CordwoodError)
    }
    drawn = set(re.findall(r"\b\w+Error\b", ERRORS.split("```")[1])) - {"LookupError", "ValueError"}
    assert drawn == classes
    explained = re.findall(r"^\| `([a-z_]+)` \| `\w+Error`", ERRORS, re.MULTILINE)
    assert sorted(explained) == sorted(cordwood.Code)


def test_features_and_options_are_listed():
    """The format page has every feature, the operations page every option of a writer."""
    features = FORMAT[FORMAT.index("| feature |") : FORMAT.index("A feature that is on")]
    assert set(re.findall(r"^\| `(\w+)`", features, re.MULTILINE)) == log_format.KNOWN_FEATURES
    for name in Options.__struct_fields__:
        assert f"`{name}`" in OPERATIONS, name


def test_glossary_is_in_order():
    """The table is in alphabetical order, each word once, and has what users hold."""
    words = re.findall(r"^\| \*\*([^*]+)\*\*", GLOSSARY, re.MULTILINE)
    assert words == sorted(words, key=str.lower)
    assert len(words) == len(set(words))
    assert {"collect", "collection", "cursor", "pin", "topic", "volume", "witness"} <= {*words}
