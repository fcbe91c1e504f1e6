"""`vectord completion`: print the script that completes commands, options and values in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from vectord.cli.printing import print_text
from vectord.config.command_line import Command

SHELLS = ("bash", "zsh", "fish")

HELP = """\
Print a script that completes commands, options and their values.

\b
  bash  vectord completion bash > ~/.local/share/bash-completion/completions/vectord
        (for this shell only: source <(vectord completion bash))
  zsh   vectord completion zsh > ~/.zfunc/_vectord
        (with fpath+=~/.zfunc before compinit in ~/.zshrc)
  fish  vectord completion fish > ~/.config/fish/completions/vectord.fish

The script calls the installed vectord for completions, so it need not be replaced after an upgrade."""


@click.command(cls=Command, help=HELP, short_help="Print a completion script for your shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    completion = get_completion_class(shell)
    assert completion is not None
    root = click.get_current_context().find_root()
    return print_text(completion(root.command, {}, "vectord", "_VECTORD_COMPLETE").source())
