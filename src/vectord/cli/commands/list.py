"""`vectord list`: `vectord models` under the name that Ollama's users know."""

from vectord.cli.commands import command_with_settings
from vectord.cli.commands.models import HELP, PARAMETERS, list_or_show

command = command_with_settings(help=HELP, short_help="The same as models, as in Ollama.", params=[*PARAMETERS])(
    list_or_show
)
