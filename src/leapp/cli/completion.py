"""``leapp completion``: a completion script for a shell. It is made from the parser, so it has every verb and option."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import NamedTuple

from leapp.cli.output import Answer, Text
from leapp.cli.parser import VERBS, build


class _Command(NamedTuple):
    """The completions after the name of a command: its options (flag, help, choices) and the choices of its first argument."""

    options: list[tuple[str, str, list[str]]]
    words: list[str]


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp completion``."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def command(arguments: Namespace) -> Answer:
    """The completion script of a shell."""
    script = "\n".join({"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell](_commands()))
    return Answer({"shell": arguments.shell, "script": script}, [Text(script)])


def _commands() -> dict[str, _Command]:
    sub = next(action for action in build(VERBS)._actions if isinstance(action, argparse._SubParsersAction))
    found = {}
    for name, parser in sub.choices.items():
        shown = [(action, [str(choice) for choice in action.choices or ()]) for action in parser._actions]
        options = [
            (_flag(action), (action.help or "").replace("%(default)s", str(action.default)), choices)
            for action, choices in shown
            if action.option_strings and action.help != argparse.SUPPRESS
        ]
        found[name] = _Command(options, next((choices for action, choices in shown if not action.option_strings), []))
    return found


def _flag(action: argparse.Action) -> str:
    return next(option for option in action.option_strings if option.startswith("--"))


def _bash(commands: dict[str, _Command]) -> Iterator[str]:
    yield "_leapp() {"
    yield "  local current=${COMP_WORDS[COMP_CWORD]} words="
    yield "  if [ $COMP_CWORD -eq 1 ]; then"
    yield f"    words='{' '.join(commands)} --help --version'"
    yield "  else"
    yield "    case ${COMP_WORDS[1]}:${COMP_WORDS[COMP_CWORD-1]} in"
    for name, command in commands.items():
        for flag, _, choices in command.options:
            if choices:
                yield f"      {name}:{flag}) words='{' '.join(choices)}' ;;"
    for name, (options, words) in commands.items():
        flags = [flag for flag, _, _ in options]
        yield f"      {name}:*) case $current in -*) words='{' '.join(flags)}' ;; *) words='{' '.join(words)}' ;; esac ;;"
    yield "    esac"
    yield "  fi"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "}"
    yield "complete -o default -F _leapp leapp"


def _zsh(commands: dict[str, _Command]) -> Iterator[str]:
    yield "#compdef leapp"
    yield "_leapp() {"
    yield "  local -a commands options"
    yield "  if (( CURRENT == 2 )); then"
    described = " ".join(_quoted(f"{name}:{text}") for name, text in VERBS.items())
    yield f"    commands=({described})"
    yield "    _describe command commands"
    yield "    return"
    yield "  fi"
    yield "  case $words[2]:$words[CURRENT-1] in"
    for name, command in commands.items():
        for flag, _, choices in command.options:
            if choices:
                yield f"    {name}:{flag}) compadd -- {' '.join(choices)}; return ;;"
    yield "  esac"
    yield "  case $words[2] in"
    for name, (options, words) in commands.items():
        listed = " ".join(_quoted(f"{flag}:{text.replace(':', ';')}") for flag, text, _ in options)
        more = f"compadd -- {' '.join(words)}; " if words else ""
        yield f"    {name}) options=({listed}); [[ $PREFIX == -* ]] && _describe option options; {more};;"
    yield "  esac"
    yield "  _files"
    yield "}"
    # Works both from a file in $fpath and from eval.
    yield 'if [ "$funcstack[1]" = "_leapp" ]; then _leapp "$@"; else compdef _leapp leapp; fi'


def _fish(commands: dict[str, _Command]) -> Iterator[str]:
    for name, (options, words) in commands.items():
        yield f"complete -c leapp -n __fish_use_subcommand -f -a {name} -d {_quoted(VERBS[name])}"
        inside = f"-n '__fish_seen_subcommand_from {name}'"
        for flag, help_text, choices in options:
            values = f" -x -a {_quoted(' '.join(choices))}" if choices else ""
            yield f"complete -c leapp {inside} -l {flag.lstrip('-')} -d {_quoted(help_text)}{values}"
        if words:
            yield f"complete -c leapp {inside} -f -a {_quoted(' '.join(words))}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
