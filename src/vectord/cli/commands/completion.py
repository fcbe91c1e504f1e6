"""`vectord completion`: a script that completes commands and options in bash, zsh or fish.

Made of what `--help` of each command lists, and of the settings: an option that is added needs no line here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vectord.cli.commands import command_names, load_command
from vectord.cli.printing import print_text
from vectord.config.settings import SETTINGS
from vectord.errors import ConfigError

USAGE = "completion bash|zsh|fish"
SUMMARY = "print a script for your shell"

SHELLS = ("bash", "zsh", "fish")
WITH_SETTINGS = ("serve", "models", "bulk", "pull", "doctor")  # commands that take the options of serve

_HELP = """\
Usage: vectord completion bash|zsh|fish

Prints a script that completes commands, options and the values of those that have few.

  bash   vectord completion bash > ~/.local/share/bash-completion/completions/vectord
         (for this shell alone: source <(vectord completion bash))
  zsh    vectord completion zsh > ~/.zfunc/_vectord
         (with fpath+=~/.zfunc before compinit in ~/.zshrc)
  fish   vectord completion fish > ~/.config/fish/completions/vectord.fish

Made from the options of this version: run it again after an upgrade.
"""

# A line of help that begins an option: "  --format {a,b}", "  -h, --help", "  --json".
_ENTRY = re.compile(r"^ {2}((?:-\w, )?--[a-z][a-z0-9-]*(?:, --[a-z][a-z0-9-]*)*)(.*)$", re.MULTILINE)
_CHOICES = re.compile(r"^ \{?([a-zA-Z0-9:_.-]+(?:[,|][a-zA-Z0-9:_.-]+)+)\}?(?: |$)")


@dataclass(frozen=True, slots=True)
class Option:
    flags: tuple[str, ...]
    takes_value: bool
    choices: tuple[str, ...]


def help() -> str:
    return _HELP


def run(words: Sequence[str]) -> int:
    if len(words) != 1 or words[0] not in SHELLS:
        raise ConfigError(f"vectord completion: takes one of {', '.join(SHELLS)}")
    commands = {name: options(name) for name in command_names()}
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[words[0]]
    return print_text(script(commands))


def options(name: str) -> list[Option]:
    """Of a command, each once."""
    found = [_option(flags, rest) for flags, rest in _ENTRY.findall(load_command(name).help())]
    if name in WITH_SETTINGS:
        found += [
            Option(setting.flags[:1], setting.type is not bool, setting.choices if setting.type is not bool else ())
            for setting in SETTINGS
        ]
        found += [Option(("--config",), True, ()), Option(("--profile",), True, ())]
    seen: dict[str, Option] = {}
    for option in found:
        seen.setdefault(option.flags[-1], option)
    return list(seen.values())


def _option(flags: str, rest: str) -> Option:
    value = rest.partition("  ")[0]
    choices = _CHOICES.match(value)
    listed = re.split("[,|]", choices[1]) if choices else ()
    takes_value = bool(value.strip()) and not value.strip().startswith("[")
    return Option(tuple(flags.split(", ")), takes_value, tuple(listed))


def _flags(found: Sequence[Option]) -> str:
    return " ".join(flag for option in found for flag in option.flags)


# --- bash -----------------------------------------------------------------------------------------------------


def _bash(commands: Mapping[str, Sequence[Option]]) -> str:
    lines = [
        "# bash completion for vectord; made by `vectord completion bash`",
        "_vectord() {",
        "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}",
        "  COMPREPLY=()",
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f'    COMPREPLY=($(compgen -W "{" ".join(commands)} --help --version" -- "$word"))',
        "    return",
        "  fi",
        '  case "$command" in',
    ]
    for name, found in commands.items():
        lines += [f"    {name})", '      case "$before" in']
        lines += [_bash_value(option) for option in found if option.takes_value]
        lines += ["      esac", f'      local options="{_flags(found)}" ;;']
    lines += [
        "    *) return ;;",
        "  esac",
        '  if [ "$command" = completion ]; then',
        f'    COMPREPLY=($(compgen -W "{" ".join(SHELLS)}" -- "$word"))',
        '  elif [[ "$word" == -* ]]; then',
        '    COMPREPLY=($(compgen -W "$options" -- "$word"))',
        "  else",
        '    COMPREPLY=($(compgen -f -- "$word"))',
        "  fi",
        "}",
        "complete -o filenames -F _vectord vectord",
    ]
    return "\n".join(lines)


def _bash_value(option: Option) -> str:
    complete = f'-W "{" ".join(option.choices)}"' if option.choices else "-f"
    return f'        {"|".join(option.flags)}) COMPREPLY=($(compgen {complete} -- "$word")); return ;;'


# --- zsh ------------------------------------------------------------------------------------------------------


def _zsh(commands: Mapping[str, Sequence[Option]]) -> str:
    lines = [
        "#compdef vectord",
        "# zsh completion for vectord; made by `vectord completion zsh`",
        "_vectord() {",
        "  if (( CURRENT == 2 )); then",
        "    local -a commands=(",
        *(f"      {_quoted(f'{name}:{load_command(name).SUMMARY}')}" for name in commands),
        "    )",
        "    _describe command commands",
        "    return",
        "  fi",
        "  local before=${words[CURRENT-1]}",
        "  case ${words[2]} in",
    ]
    for name, found in commands.items():
        lines += [f"    {name})", "      case $before in"]
        for option in found:
            if option.takes_value:
                complete = f"compadd -- {' '.join(option.choices)}" if option.choices else "_files"
                lines.append(f"        {'|'.join(option.flags)}) {complete}; return ;;")
        values = f"compadd -- {' '.join(SHELLS)}" if name == "completion" else "_files"
        lines += [
            "      esac",
            f"      if [[ $PREFIX == -* ]]; then compadd -- {_flags(found)}; else {values}; fi ;;",
        ]
    lines += ["  esac", "}", 'if [ "$funcstack[1]" = _vectord ]; then _vectord "$@"; else compdef _vectord vectord; fi']
    return "\n".join(lines)


# --- fish -----------------------------------------------------------------------------------------------------


def _fish(commands: Mapping[str, Sequence[Option]]) -> str:
    first = "__fish_use_subcommand"
    lines = ["# fish completion for vectord; made by `vectord completion fish`"]
    for name in commands:
        lines.append(f"complete -c vectord -f -n {first} -a {name} -d {_quoted(load_command(name).SUMMARY)}")
    for name, found in commands.items():
        inside = f"-n '__fish_seen_subcommand_from {name}'"
        for option in found:
            short = "".join(f" -s {flag[1:]}" for flag in option.flags if not flag.startswith("--"))
            long = "".join(f" -l {flag[2:]}" for flag in option.flags if flag.startswith("--"))
            value = f" -x -a '{' '.join(option.choices)}'" if option.choices else " -r" if option.takes_value else ""
            lines.append(f"complete -c vectord {inside}{short}{long}{value}")
    lines.append(f"complete -c vectord -f -n '__fish_seen_subcommand_from completion' -a '{' '.join(SHELLS)}'")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
