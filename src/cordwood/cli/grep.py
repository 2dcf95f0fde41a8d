"""`cordwood grep`: lines that match a pattern, found by an index of the tree's trigrams."""

from __future__ import annotations

import sys
from typing import Any

import click

from cordwood.base.errors import CordwoodError, InvalidInputError
from cordwood.cli.answers import AnswerError, give_up
from cordwood.cli.found import NOT_FOUND, WRONG, Found
from cordwood.cli.output import byte_progress, command, fail, print_json, text_of, told_of
from cordwood.index.lines import Finder
from cordwood.index.sources import Looked, Sources


@click.command()
@click.argument("pattern", required=False)
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path())
@click.option("-i", "--ignore-case", is_flag=True, help="Upper and lower case are the same.")
@click.option("-F", "--fixed", is_flag=True, help="PATTERN is the text to look for.")
@click.option("-w", "--words", is_flag=True, help="Only matches that are whole words.")
@click.option("-l", "--files", is_flag=True, help="Print the names of files that match.")
@click.option("-c", "--count", is_flag=True, help="Print how many lines of each file match.")
@click.option("-n/-N", "--numbers/--no-numbers", default=True, help="Print numbers of lines.")
@click.option(
    "--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True
)
@click.option("--index", "place", default="", help="Where the index is, if not in DIR.")
@click.option("--update", is_flag=True, help="Bring the index up to date first, or build it.")
@click.option("--rebuild", is_flag=True, help="Delete the index and build it again first.")
@click.option("--no-index", is_flag=True, help="Read every file, and leave the index alone.")
@click.option("--no-ignore", is_flag=True, help="Search what .gitignore leaves out as well.")
@click.option("--bench", is_flag=True, help="Measure, beside ripgrep and grep where installed.")
@command
def grep(pattern: str | None, directory: str | None, *, as_json: bool, **options: Any) -> None:
    """Print the lines that match PATTERN in the files below DIR (default: here).

    PATTERN is a regular expression as Python's re reads it. An index in DIR/.cordwood-grep says
    which files can match; they are then read, and so is every file that has changed since: the
    answer is always that of a full search. A large tree gets its index with the first search.

    With --update or --rebuild PATTERN may be left out: a single argument is then DIR.

    The exit code is 0 if a line matched, 1 if none did, and 2 if something was wrong.
    """
    if (options["update"] or options["rebuild"]) and directory is None:
        pattern, directory = None, pattern
    elif pattern is None:
        raise click.UsageError("give a PATTERN to look for")
    try:
        run = _Run(pattern, directory or ".", as_json=as_json, **options)
        sys.exit(run.all())
    except CordwoodError as error:
        fail(error.message, error.hint, str(error.code), as_json=as_json, exit_code=WRONG)
    except AnswerError as error:
        sys.exit(WRONG if give_up(error) else 0)
    except OSError as error:
        fail(told_of(error), "", "os", as_json=as_json, exit_code=WRONG)


class _Run:
    """One call of the command."""

    def __init__(self, pattern: str | None, directory: str, **options: Any) -> None:
        self._options = options
        self._as_json: bool = options["as_json"]
        self._faults = 0
        self._finder: Finder | None = None
        if options["no_index"] and (options["update"] or options["rebuild"]):
            raise InvalidInputError("--no-index goes without --update and --rebuild")
        if pattern is not None:
            self._finder = Finder(
                pattern,
                ignore_case=options["ignore_case"],
                fixed=options["fixed"],
                words=options["words"],
            )
        self._sources = Sources(
            directory, options["place"], ignore=not options["no_ignore"], tell=self._tell
        )

    def all(self) -> int:
        """Do it; the exit code."""
        try:
            names = self._sources.names()
            if self._options["rebuild"]:
                self._sources.remove_index()
            if self._options["update"] or self._options["rebuild"]:
                self._update(names, quiet=self._finder is not None)
            if self._finder is None:
                return WRONG if self._faults else 0
            if self._options["bench"]:
                return self._bench(self._finder, names)
            return self._search(self._finder, names)
        finally:
            self._sources.close()

    def _search(self, finder: Finder, names: list[bytes]) -> int:
        looked = self._look(names)
        try:
            candidates = self._sources.candidates(finder, looked)
        except CordwoodError as error:
            self._warn_of(error)
            candidates = names
        has_found = Found(finder, self._options).show_all(self._sources, candidates)
        if looked.known is not None:
            try:
                if looked.is_worth_updating:
                    self._update(names, quiet=True)
                else:
                    self._sources.count()
            except CordwoodError as error:
                self._warn(f"the index was not brought up to date: {error.message}")
        if self._faults:
            return WRONG
        return 0 if has_found else NOT_FOUND

    def _look(self, names: list[bytes]) -> Looked:
        """The tree beside its index; without one, or with one that is of no use, all of it."""
        everything = Looked(names, None, names, 0)
        if self._options["no_index"] or self._sources.is_file:
            return everything
        try:
            looked = self._sources.look(names)
            if looked.is_worth_building:
                self._update(names, quiet=self._as_json)
                looked = self._sources.look(names)
        except CordwoodError as error:
            self._warn_of(error)
            return everything
        return looked

    def _update(self, names: list[bytes], *, quiet: bool) -> None:
        shown = not self._as_json
        with byte_progress("indexing", 0, shown=shown) as progress:
            done = self._sources.update(names, progress)
        if self._finder is None and self._as_json:
            print_json({"files": len(names), "added": done.added, "dropped": done.dropped})
        elif not quiet:
            self._warn(
                f"indexed {done.added:,} files in {self._sources.place}"
                if done.added or not done.dropped
                else f"dropped {done.dropped:,} files from {self._sources.place}"
            )

    def _bench(self, finder: Finder, names: list[bytes]) -> int:
        # A benchmark needs more than a search does.
        from cordwood.cli.bench.grep import measure, report  # noqa: PLC0415

        if self._sources.look(names).known is None:
            self._update(names, quiet=False)
        result = measure(self._sources, finder, flags=self._options)
        if self._as_json:
            print_json(result)
        else:
            report(result)
        return 0

    def _tell(self, path: bytes, error: OSError) -> None:
        self._faults += 1
        self._warn(f"{text_of(path)}: {error.strerror or error}")

    def _warn_of(self, error: CordwoodError) -> None:
        self._warn(f"{error.message}\n  every file is read instead; --rebuild makes a new index")

    def _warn(self, text: str) -> None:
        click.echo(f"cordwood: {text}", err=True)
