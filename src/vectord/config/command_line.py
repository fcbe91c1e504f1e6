"""The settings as options of click commands, and the command line read into a `CommandLine`.

`Command` is the class of every command; some of them, such as `vectord serve` and `bulk`, accept settings.
Each name of a setting is an option of its own, so that an error and `--print-config` can quote the name that was used.
The options of all profiles are known here; sources.py decides which of them count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import click
from click.shell_completion import CompletionItem

from vectord.config.profiles import Profiles, make_profile
from vectord.config.settings import FALSE, SECTION_TITLES, SETTINGS, TRUE, Setting, option_name
from vectord.config.sources import CommandLine, nearest, quoted
from vectord.errors import ConfigError

_METAVARS = {int: "N", float: "X", str: "TEXT", tuple: "LIST"}
_WIDTH = 100
# The options that `vectord serve --help` describes; --help-all describes all of them.
COMMON = (
    *("--port", "--host", "--api-key", "--profile", "--config"),
    *("--served-model-name", "--device", "--dtype", "--auto-truncate", "--offline"),
)
_ALL = "vectord.help_all"  # in the context's `meta`: help lists every setting
_HYPHEN = "\N{NON-BREAKING HYPHEN}"  # in names, until the lines are wrapped


class Command(click.Command):
    """A command whose options print in groups. A usage error is a ConfigError with one line.

    settings: accepts every setting, and MODELs unless it has words of its own, read into the context's CommandLine;
    `pass_command_line` hands it over.
    `--help-all` lists them. list_settings: `--help` describes the common ones and names the others.
    """

    def __init__(
        self,
        *args: Any,
        settings: bool = False,
        list_settings: bool = False,
        profiles: Callable[[], Profiles] = dict,
        **kwargs: Any,
    ) -> None:
        kwargs["context_settings"] = {"help_option_names": ["-h", "--help"], "max_content_width": _WIDTH}
        super().__init__(*args, **kwargs)
        self._settings, self._list_settings, self._profiles = settings, list_settings, profiles

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if self._settings:  # 250 options: not made before they are needed
            self._settings = False
            own = {flag for param in self.params for flag in param.opts}
            self.params += [option for option in _options(self._profiles()) if option.opts[0] not in own]
            if not any(param.nargs == -1 for param in self.params):
                self.params.append(_models())
            self.params.append(_help_all())
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            # Also after a misspelt option: help is for a command line that does not work.
            help_options = {"-h", "--help", "--help-all"} & set(args)
            args = (
                ["--help-all" if "--help-all" in help_options else "--help"]
                if help_options
                else self._with_values(ctx, args)
            )
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise ConfigError(usage_line(error)) from None

    def _with_values(self, ctx: click.Context, args: Sequence[str]) -> list[str]:
        """Write `--switch` as `--switch=true` unless true or false follows, so that click takes no model as its value.

        Raises ConfigError for an option with another option in the place of its value, and for another server's option.
        """
        options = {flag: param for param in self.get_params(ctx) for flag in param.opts}
        instead = {option: text for fields in self._profiles().values() for option, text in fields["instead"].items()}
        words, is_value = list(args), False
        for i, (word, following) in enumerate(pairwise([*words, "--"])):
            option, name = options.get(word), word.partition("=")[0]
            if word == "--":
                break
            if name in instead and name not in options and not is_value:
                raise ConfigError(f"{name} is another server's option: {instead[name]}")
            is_value = False
            if isinstance(option, SettingOption) and option.may_stand_alone:
                if following.lower() not in TRUE | FALSE:
                    words[i] = f"{word}=true"
            elif isinstance(option, click.Option) and not option.is_flag:
                if following.startswith("--"):
                    raise ConfigError(f"{word} (command line): expected a value")
                is_value = True
        return words

    def get_help(self, ctx: click.Context) -> str:
        return super().get_help(ctx).replace(_HYPHEN, "-")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            group = param.group if isinstance(param, SettingOption) else "Options"
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record and (group == "Options" or self._list_settings or _ALL in ctx.meta):
                groups.setdefault(group, []).append(record)
        if self._list_settings and _ALL not in ctx.meta:
            groups = _brief(groups)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def value(
    name: str, metavar: str, help: str, *, kind: Any = None, default: Any = None, env: Sequence[str] = ()
) -> click.Option:
    """An option with a value. kind: a click type; env: variables of the process that set it, too."""
    return click.Option(
        [name],
        metavar=metavar or None,
        type=kind,
        default=default,
        show_default=default not in (None, ""),
        envvar=list(env) or None,
        show_envvar=True,
        help=help,
    )


def flag(*names: str, help: str) -> click.Option:
    return click.Option(names, is_flag=True, help=help)


pass_command_line = click.make_pass_decorator(CommandLine, ensure=True)


def usage_line(error: click.UsageError) -> str:
    """The error in one line, with the nearest known option."""
    if isinstance(error, click.NoSuchOption):
        return f"unknown option {quoted(error.option_name)}{nearest(error.option_name, error.possibilities or ())}"
    text = error.format_message()
    if error.ctx and (isinstance(error, click.MissingParameter) or type(error) is click.UsageError):  # of arguments
        text = f"{text.rstrip('.')}; usage: {error.ctx.get_usage().removeprefix('Usage:')}"
    return " ".join(text.split())[:400]


class SettingOption(click.Option):
    """One name of a setting on the command line."""

    def __init__(
        self,
        flag: str,
        read: Callable[[CommandLine, Sequence[str]], None] | None = None,
        *,
        group: str,
        record: tuple[str, str] | None = None,
        may_stand_alone: bool = False,
        names_models: bool = False,
        choices: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
            if value not in (None, ()) and not ctx.resilient_parsing:
                line = ctx.ensure_object(CommandLine)
                texts = value if isinstance(value, tuple) else (value,)
                joint = "=" if flag.startswith("--") else ""
                line.words += [flag if self.is_flag else f"{flag}{joint}{text}" for text in texts]
                if names_models:
                    line.model_options.append(flag)
                if read is None:
                    line.options[flag] = [*texts]
                else:
                    read(line, texts)

        super().__init__([flag], expose_value=False, callback=callback, hidden=record is None, **kwargs)
        self.group, self.may_stand_alone = group, may_stand_alone
        self._record, self._choices = record, choices

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return self._record

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if not self._choices:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(choice) for choice in self._choices if choice.startswith(incomplete)]


def _brief(groups: dict[str, list[tuple[str, str]]]) -> dict[str, list[tuple[str, str]]]:
    """The COMMON options in their order, the command's own options, and the names of all others by group."""
    own = groups.pop("Options")
    records = {_long_name(names): (names, text) for group in groups.values() for names, text in group}
    # Of the variables only the first.
    common = [(names, re.sub(r" \[(\w+), [\w, ]+", r" [\1", text)) for names, text in map(records.__getitem__, COMMON)]
    names = [(title, ", ".join(_long_name(names) for names, _ in group)) for title, group in groups.items()]
    names = [(title, text.replace("-", _HYPHEN)) for title, text in names]
    return {"Common options": common, "Options": own, "All options, described by --help-all": names}


def _long_name(names: str) -> str:
    """--port of "-p, --port N"."""
    return next(word.rstrip(",") for word in names.split() if word.startswith("--"))


def _help_all() -> click.Option:
    def callback(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[_ALL] = True
            click.echo(ctx.get_help())
            ctx.exit()

    help = "Describe every setting, then exit."
    return click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=callback, help=help)


def _models() -> click.Argument:
    """The words that are no options."""

    def callback(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:
        if value and not ctx.resilient_parsing:
            line = ctx.ensure_object(CommandLine)
            line.words += value
            line.models += value

    return click.Argument(
        ["positional_models"],
        nargs=-1,
        metavar="[MODEL]...",
        type=str,
        expose_value=False,
        callback=callback,
        shell_complete=lambda ctx, param, incomplete: [CompletionItem(incomplete, type="file")],
    )


def _options(profiles: Profiles) -> Iterator[SettingOption]:
    def read_config(line: CommandLine, texts: Sequence[str]) -> None:
        """A YAML file is a catalogue of models; a file of settings is TOML."""
        if texts[0].lower().endswith((".yaml", ".yml")):
            line.options["--model-catalogue"] = [*texts]
        else:
            line.config = texts[0]

    def reader(name: str) -> Callable[[CommandLine, Sequence[str]], None]:
        return lambda line, texts: setattr(line, name, texts[0])

    def read_env_compat(line: CommandLine, texts: Sequence[str]) -> None:
        line.env_compat = True

    config = ("--config FILE", "Settings as TOML. [VECTORD_CONFIG; default: ./vectord.toml if it exists]")
    names = f"Stand in for another product: {', '.join(profiles)}. [VECTORD_PROFILE; default: default]"
    env_file = ("--env-file FILE", "Settings as NAME=VALUE, after the environment. [VECTORD_ENV_FILE]")
    env_compat = ("--env-compat", "Variables also count without VECTORD_ in front, such as PORT.")
    yield SettingOption("--config", read_config, group="Sources", record=config)
    yield SettingOption("--env-file", reader("env_file"), group="Sources", record=env_file)
    yield SettingOption(
        "--env-compat", read_env_compat, group="Sources", record=env_compat, is_flag=True, flag_value="true", type=str
    )
    yield SettingOption(
        "--profile", reader("profile"), group="Sources", record=("--profile NAME", names), choices=[*profiles]
    )
    groups = {setting.name: SECTION_TITLES[setting.section].partition(":")[0] for setting in SETTINGS}
    by_flag = {flag: setting for setting in SETTINGS for flag in setting.flags}
    ignored: dict[str, bool] = {}  # whether an option without effect needs no value
    for profile in (make_profile(name, profiles) for name in profiles):
        for setting in profile.settings:
            for flag in setting.flags:
                by_flag.setdefault(flag, setting)
            if setting.of_profiles or setting.section not in SECTION_TITLES:
                known = groups.get(setting.name)
                groups[setting.name] = f"{known}, {profile.name}" if known else f"--profile {profile.name}"
        ignored |= {option: name in profile.switches for option, name in profile.ignored_options.items()}
    for flag, setting in by_flag.items():
        yield from _with_opposite(
            flag,
            is_switch=setting.type is bool or flag in setting.switches,
            group=groups[setting.name],
            names_models=setting.name == "models",
            record=_help_record(setting) if flag == setting.flags[0] else None,
            choices=("true", "false") if setting.type is bool else setting.choices,
        )
    for flag, is_switch in ignored.items():
        if flag not in by_flag:
            yield from _with_opposite(flag, is_switch=is_switch, group="")


def _with_opposite(flag: str, *, is_switch: bool, group: str, **option: Any) -> Iterator[SettingOption]:
    """The option `flag`, and `--no-...` for a switch."""
    yield SettingOption(flag, group=group, may_stand_alone=is_switch, multiple=True, **option)
    if is_switch:
        negative = "--no-" + flag.removeprefix("--")
        yield SettingOption(negative, group=group, is_flag=True, flag_value="false", type=str)


def _help_record(setting: Setting) -> tuple[str, str]:
    """Its own options and those without a variable; the meaning, the variables and the default."""
    others = {option_name(name) for name in setting.env[1:]} - {setting.flags[0]}
    flags = sorted((flag for flag in setting.flags if flag not in others), key=lambda flag: flag.startswith("--"))
    if setting.type is bool:
        flags.append("--no-" + flags[-1].removeprefix("--"))
    metavar = "|".join(setting.choices) or _METAVARS.get(setting.type, "")
    default = setting.default
    if isinstance(default, bool):
        default = str(default).lower()
    elif isinstance(default, tuple):
        default = ", ".join(default) or None
    names = ", ".join(setting.env) + ("" if default is None else f"; default: {default}")
    return f"{', '.join(flags)} {metavar}".rstrip(), f"{setting.meaning} [{names}]"
