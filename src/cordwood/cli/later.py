"""A group of commands that loads a command when it is used, and lists it without.

To load all of them takes a second, and nobody wants to wait that long for a list. So the line that
a list shows of a command stands where the group is made; a test holds it against the command's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from cordwood.base.errors import StateError
from cordwood.base.lazy import lazily
from cordwood.cli.output import fail


class Later(NamedTuple):
    """A command that is not loaded yet: the module that has it, and the first line of its help."""

    module: str
    help: str


class LaterGroup(click.Group):
    """Its own commands, and others that are loaded by name."""

    def __init__(self, *args: Any, later: Mapping[str, Later], **kwargs: Any) -> None:
        """As click's group; `later` has the others by their names."""
        super().__init__(*args, **kwargs)
        self.later = later

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them."""
        return sorted({*super().list_commands(ctx), *self.later})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them; if it needs an extra that is not installed, one that says so."""
        if cmd_name not in self.later:
            return super().get_command(ctx, cmd_name)
        try:
            found: click.Command = lazily(self.later[cmd_name].module, cmd_name)
        except StateError as error:
            return _missing(cmd_name, error)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List all of them, and load none."""
        others = {name: click.Command(name, help=one.help) for name, one in self.later.items()}
        click.Group(commands={**self.commands, **others}).format_commands(ctx, formatter)


def _missing(name: str, error: StateError) -> click.Command:
    @click.command(
        name,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        help=f"Not installed: {error.hint}",
    )
    @click.argument("words", nargs=-1)
    def told(words: tuple[str, ...]) -> Any:
        fail(error.message, error.hint, str(error.code), as_json="--json" in words)

    return told
