"""What the library calls things, and what the command line calls them."""

from __future__ import annotations

from pathlib import Path

import pytest

import cordwood
from cordwood.cli.wording import NAMES, PHRASES, in_shell

SOURCE = Path(cordwood.__file__).parent
LIBRARY = "\n".join(
    path.read_text() for path in SOURCE.rglob("*.py") if "cli" not in path.relative_to(SOURCE).parts
)


@pytest.mark.parametrize("phrase", [*PHRASES, *NAMES])
def test_what_is_put_in_other_words_is_what_the_library_says(phrase):
    """A phrase that changed there is to change here."""
    assert phrase in LIBRARY


def test_a_name_in_quotes_is_somebodys_own():
    """Only what is ours is put in other words."""
    assert "--limit is 3, and not 'limit_offset'" == in_shell(
        "limit_offset is 3, and not 'limit_offset'"
    )


def test_hints_name_options_and_commands(run, url):
    """Not what a program would call."""
    run("log", "create", url)
    assert "open it, or use --exist-ok\n" in run("log", "create", url, code=1)
    assert "`cordwood log cursor set` makes it" in run("log", "cursor", "delete", url, "c", code=1)
    said = run("log", "collect", url, code=1)
    assert "make one with `cordwood log cursor set`" in said
    assert "cursors.init" not in said
    assert "`cordwood log stream open` opens it" in run("log", "stream", "show", url, "s", code=1)
    said = run("log", "read", f"{url}-not", "--json", code=1)
    assert said["hint"].startswith("create it first (`cordwood log create`), or check")
