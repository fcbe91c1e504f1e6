"""`vectord list`: `vectord models` under the name that Ollama's users know."""

from vectord.cli.commands import command_with_settings
from vectord.cli.commands.models import command as models

assert models.callback is not None
command = command_with_settings(
    help=models.help, short_help="The same as models, as in Ollama.", params=[*models.params]
)(models.callback)
