"""A group of commands that are imported when they are called, so that `tandemmq --help` costs no more than it shows.

The modules of commands go on in that way: what a command needs to run (grpc, the admin's operations, rich) it imports
when it runs, and help is plain text, as rich alone takes longer to import than a page of help may take.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from tandemmq.cli.ending import EXIT_FAILED, EXIT_REFUSED, Refused

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter, Parameter
    from typer._click.core import ParameterSource
    from typer._click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command before it is imported."""

    # module:attribute, a function or a typer.Typer.
    place: str
    # The first sentence of its documentation; empty: it is in no list.
    summary: str
    panel: str = ""
    # Its exit code 2 is a verdict: a wrong call ends with 1.
    is_verdict: bool = False

    def load(self, name: str) -> Command:
        module, _, attribute = self.place.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        holder = typer.Typer(rich_markup_mode=None, add_completion=False)
        holder.callback()(_nothing)
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=name, cls=found.info.cls or QuickGroup, rich_help_panel=self.panel)
        else:
            cls = _Verdict if self.is_verdict else None
            holder.command(name, cls=cls, rich_help_panel=self.panel, hidden=not self.summary)(found)
        group = typer.main.get_command(holder)
        assert isinstance(group, TyperGroup)
        return _plain(group.commands[name])


def panel(title: str, package: str, commands: Mapping[str, tuple[str, str]]) -> dict[str, LazyCommand]:
    """Commands by name, each with its place below the package and its summary."""
    return {name: LazyCommand(f"{package}.{place}", summary, title) for name, (place, summary) in commands.items()}


class _Verdict(TyperCommand):
    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """A usage error, whose class is Typer's own matter, has another exit code."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "exit_code", None) == EXIT_REFUSED:
                error.exit_code = EXIT_FAILED  # type: ignore[attr-defined]
            raise


def _nothing() -> None:
    pass


def _require_text(word: str) -> None:
    """CommandError for bytes that are no UTF-8: no cluster has such a name, no settings file takes such a path."""
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise Refused(
            f"{os.fsencode(word)!r} is no text in UTF-8",
            remedy="type it in a terminal of UTF-8, and give a file or folder another name",
        ) from error


# Of options and arguments that name a folder or a file.
_PLACE: Final = re.compile(r"\b(DIR|FILE|FOLDER|PATH)\b")


def _require_place(param: Parameter) -> None:
    """Refuses one that is given and says nothing: an unset variable of a shell, which would be the current folder."""
    consume = param.consume_value

    def consume_place(ctx: Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        value = opts.get(param.name)
        words = value if isinstance(value, list | tuple) else [value]
        if not ctx.resilient_parsing and any(isinstance(word, str) and not word.strip() for word in words):
            raise Refused(
                f"{'/'.join(param.opts) if param.param_type_name == 'option' else param.metavar} is empty",
                cause="it names no folder and no file; the variable of a shell may not be set",
                remedy="name one, the current folder as . ; or leave it out for the default",
            )
        return consume(ctx, opts)

    param.consume_value = consume_place  # type: ignore[method-assign]


def _plain(command: Command) -> Command:
    """The command with all below it, its help as plain text."""
    if isinstance(command, TyperCommand | TyperGroup):
        command.rich_markup_mode = None
        for param in command.params:
            if _PLACE.search(str(param.metavar)):
                _require_place(param)
    if isinstance(command, TyperGroup):
        for each in command.commands.values():
            _plain(each)
    return command


class QuickGroup(TyperGroup):
    """A group that costs a command below it nothing but its own parsing."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Typer imports pydantic, half of what a page of help costs, to find that None is None: which its own flags
        are (--help, --install-completion, --show-completion) where they are not given."""
        for each in self.get_params(ctx):
            if isinstance(each, TyperOption) and each.is_flag and each.default is None:
                each.default = False
        return super().parse_args(ctx, args)


class LazyGroup(QuickGroup):
    """Lists its commands by their summaries, panel by panel, as plain text."""

    commands: _Loaded

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Nothing is asked for: the list, and the exit code of a wrong call."""
        for word in args:
            if not word.isascii():
                _require_text(word)
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Typer's own list is drawn by rich, which takes longer to import than the rest together."""
        super(TyperGroup, self).format_help(ctx, formatter)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """A section a panel."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.unloaded.items():
            if command.summary:
                panels.setdefault(command.panel, []).append((name, command.summary))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        from typer._click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=command.summary)
            for name, command in self.commands.unloaded.items()
            if command.summary and name.startswith(incomplete)
        ]
        return [*names, *super(TyperGroup, self).shell_complete(ctx, incomplete)]


class _Loaded(MutableMapping[str, Any]):
    """Commands by name; one is imported when it is asked for."""

    def __init__(self, unloaded: Mapping[str, LazyCommand]) -> None:
        self.unloaded = dict(unloaded)
        self._loaded: dict[str, Command] = {}

    def __getitem__(self, name: str) -> Command:
        if name not in self._loaded:
            self._loaded[name] = self.unloaded[name].load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self.unloaded[name]
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.unloaded)

    def __len__(self) -> int:
        return len(self.unloaded)


def lazy_group(commands: Mapping[str, LazyCommand]) -> type[LazyGroup]:
    """The class of a group with these commands, for typer.Typer(cls=…)."""

    class Group(LazyGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands = _Loaded(commands)

    return Group
