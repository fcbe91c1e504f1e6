"""Where each setting's value comes from: `load(command_line, environ, cwd) -> Loaded` merges all sources.

    command line > environment > env file > config file > profile > default

The first source that has a setting wins; within the environment, the first of the setting's variables. Commands and
asgi.py call `load` once, before anything starts; all other code receives the Config.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from vectord.config.declared import SECTIONS, Config, ModelConfig, exporters
from vectord.config.profiles import PRODUCT, Profile, Profiles, make_profile
from vectord.config.settings import OF_PROFILES, PREFIX, SETTINGS, BadValue, Setting
from vectord.errors import ConfigError, plain_reason

log = logging.getLogger("vectord.config")
START = logging.getLogger("vectord.start")  # observability/logs.py prints it at every level

SettingSource: TypeAlias = Literal["command line", "environment", "env file", "config file", "profile", "default"]

CONFIG_FILE = "vectord.toml"
# Variables that Kubernetes sets in every pod for a service called vectord, or vectord-something. The other one is
# NAME_PORT, such as VECTORD_GPU_PORT=tcp://10.0.0.7:8000.
_SERVICE_LINK = re.compile(r"VECTORD_(\w+_)?(SERVICE_(HOST|PORT)|PORT_[0-9]+_(TCP|UDP|SCTP)).*", re.ASCII)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")


class Origin(msgspec.Struct, frozen=True):
    """Where one value came from."""

    source: SettingSource
    name: str = ""  # its name there: --port, PORT, [server] port

    def __str__(self) -> str:
        return f"{self.name} ({self.source})" if self.name else self.source


# One source's settings before they are read: name -> (a text, a list of texts or a TOML value, its origin).
Layer: TypeAlias = dict[str, tuple[object, Origin]]


class CommandLine(msgspec.Struct):
    """The words of a command line, from command_line.py. The profile decides what an option means."""

    models: list[str] = []  # the words that are no options
    options: dict[str, list[str]] = {}  # each with its values, in the order of the first use
    model_options: list[str] = []  # those of the options that name models, as --models
    config: str | None = None
    profile: str | None = None
    env_file: str | None = None
    env_compat: bool = False
    words: list[str] = []  # the same command line, for another process

    @property
    def named_models(self) -> list[str]:
        """The models of the words and of the options."""
        texts = [text for flag in self.model_options for text in self.options[flag]]
        return [*self.models, *filter(None, (item.strip() for text in texts for item in re.split("[,;]", text)))]


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration, the origin of each setting by name, and notes for the operator without any value."""

    config: Config
    origins: Mapping[str, Origin]
    profile: str
    settings: tuple[Setting, ...]  # that count under the profile
    notes: tuple[str, ...] = ()
    unused_keys: tuple[str, ...] = ()  # why the variables of keys that no client needs do not protect the server

    def check_keys(self) -> None:
        """Raise ConfigError if clients need no key although a variable of another profile demands one."""
        if self.unused_keys and not self.config.server.demands_key:
            raise ConfigError(self.unused_keys[0])

    def log_notes(self) -> None:
        """Also the names of variables that other programs use too, without the values."""
        for source in ("environment", "env file"):
            used = dict.fromkeys(origin.name for origin in self.origins.values() if origin.source == source)
            if names := [name for name in used if not name.startswith((PREFIX, "HF_"))]:
                START.info("settings from the %s: %s", source, ", ".join(names))
        for note in self.notes:
            log.warning("%s", note)

    def printable(self) -> Iterator[tuple[Setting, Any, Origin]]:
        """Each setting with its value and origin. A secret that is set is ***, as is a password in a URL."""
        for setting in self.settings:
            value = self._value(setting)
            value = without_password(value) if isinstance(value, str) else value
            yield setting, "***" if setting.secret and value is not None else value, self.origins[setting.name]

    def _value(self, setting: Setting) -> Any:
        if setting.section == PRODUCT:
            return self.config.server.product[setting.name]
        return getattr(getattr(self.config, setting.section), setting.name)


def load(command_line: CommandLine, environ: Mapping[str, str], cwd: Path, profiles: Profiles | None = None) -> Loaded:
    """Merge all sources. Reads vectord.toml in `cwd`, and the files of --config and --env-file.

    profiles: from products/. Raises ConfigError, in one line: the name, its source, and the form that was expected.
    """
    notes: list[str] = []
    unused: list[str] = []
    profiles = profiles or {}
    name = command_line.profile or environ.get("VECTORD_PROFILE")
    named_env_file = command_line.env_file or environ.get("VECTORD_ENV_FILE") or None
    of_profile = find_profile(name or "default", profiles).env_file
    env_file = _read_env_file(cwd, named_env_file or of_profile, named_env_file is not None, notes)
    named_file = command_line.config or environ.get("VECTORD_CONFIG") or env_file.get("VECTORD_CONFIG")
    file_title, tables, file_profile = _read_config_file(cwd, named_file)
    profile = find_profile(name or env_file.get("VECTORD_PROFILE") or file_profile or "default", profiles)
    known = profile.settings
    env_compat = command_line.env_compat or profile.name != "default"
    layers = (
        _read_command_line(command_line, profile, profiles, unused),
        _read_environment(environ, "environment", known, env_compat, notes, profiles),
        _read_environment(env_file, "env file", known, env_compat, notes, profiles),
        _read_tables(tables, known, "config file", file_title),
        layer_of(profile, cwd),
    )
    if not any({"hf_home", "hub_cache"} & layer.keys() for layer in layers):
        notes += _unwritable_home(profile)
    config, origins = _merged(layers, profile)
    for setting in known:
        if setting.name in profile.required and not getattr(getattr(config, setting.section), setting.name):
            raise ConfigError(
                f"{setting.bare} is not set, and the profile {profile.name} requires it (or {setting.flags[0]})"
            )
    text, prompt_name = origins["default_prompt"], origins["default_prompt_name"]
    if "default" not in (text.source, prompt_name.source):
        raise ConfigError(f"{text} and {prompt_name}: set only one of them")
    unused_keys: list[str] = []
    if not (named_env_file or of_profile):
        notes += _unread_env_file(cwd, known, env_compat, unused_keys)
    notes += _unused(unused, profile, env_compat, profiles, (environ, env_file), unused_keys)
    if any(exporters(names.get("OTEL_TRACES_EXPORTER", "")) - {"otlp", "none"} for names in (environ, env_file)):
        notes.append("OTEL_TRACES_EXPORTER: otlp is the only exporter of this server; others make no traces")
    return Loaded(
        config=config,
        origins=origins,
        profile=profile.name,
        settings=known,
        notes=tuple(notes),
        unused_keys=tuple(unused_keys),
    )


_CLIENT_KEYS = ("api_key", "api_token", "api_keys_file")  # as in ServerConfig.accepted_keys, and the file


def _unused(
    options: Sequence[str],
    profile: Profile,
    env_compat: bool,
    profiles: Profiles,
    sources: Sequence[Mapping[str, str]],
    unused_keys: list[str],
) -> Iterator[str]:
    """Notes that name the options and variables without effect under this profile. Appends to `unused_keys`."""
    unused = [*options]
    for names in sources:
        for variable in profile.without_effect:
            if value := names.get(variable, "").strip():
                profile.check_ignored(variable, variable, value)
                unused.append(variable)
    if unused:
        yield f"set, but without effect here: {', '.join(dict.fromkeys(unused))} (see docs/configuration.md)"
    counting = {*profile.without_effect, *(name for one in profile.settings for name in _names(one, env_compat))}

    present = {name for names in sources for name in names}

    def unread(other: Profile) -> dict[str, Setting]:
        """The variables that are set and count there, but not here."""
        # Few of the 1,500 settings of all profiles are present, and os.environ takes microseconds for each name.
        some = [one for one in other.settings if not present.isdisjoint((one.bare, *one.env))]
        found = {name: one for one in some for names in sources for name, _ in _texts(one, names, True)}
        return {name: one for name, one in found.items() if name not in counting}

    bare = unread(profile)
    if bare:
        yield f"set, but ignored: {', '.join(bare)}; put {PREFIX} in front, or start with --env-compat"
    ignored = {**bare}
    elsewhere: dict[str, list[str]] = {}
    for other in (make_profile(name, profiles) for name in profiles):
        found = {} if present.isdisjoint(other.variables) else unread(other)  # whose settings take a millisecond
        for name, setting in found.items():
            if name not in bare:
                ignored[name] = setting
                elsewhere.setdefault(name, []).append(other.name)
    if elsewhere:
        listed = ", ".join(f"{name} ({', '.join(names)})" for name, names in elsewhere.items())
        yield f"set, but read under other profiles only: {listed}"
    for name, setting in ignored.items():
        if setting.name in _CLIENT_KEYS:
            where, way = (_only_under(elsewhere[name]), "--profile") if name in elsewhere else ("", "--env-compat")
            own = "VECTORD_API_KEYS_FILE" if setting.name == "api_keys_file" else "VECTORD_API_KEY (or --api-key)"
            unused_keys.append(f"{name} does not protect this server{where}; set {own} or {way}, or unset {name}")


# A setting -> another that wins over it, unless the first comes from a source of higher priority: --hf-home beats
# HF_HUB_CACHE; HF_HUB_CACHE beats HF_HOME in the same source, as in huggingface_hub.
_OUTRANKED = {"hf_home": "hub_cache", "forward_timeout_s": "gpu_forward_timeout_s"}


def _merged(layers: Sequence[Layer], profile: Profile) -> tuple[Config, Mapping[str, Origin]]:
    """Each setting from the first layer that has it. The second one of a pair in _OUTRANKED counts only up to the first
    layer with the first one."""
    for outranks, name in _OUTRANKED.items():
        first = next((place for place, layer in enumerate(layers) if outranks in layer), len(layers))
        later = [{key: value for key, value in layer.items() if key != name} for layer in layers[first + 1 :]]
        layers = [*layers[: first + 1], *later]
    values: dict[str, dict[str, Any]] = {section: {} for section in (*SECTIONS, PRODUCT)}
    origins: dict[str, Origin] = {}
    every = {setting.name: setting for setting in (*SETTINGS, *OF_PROFILES.values(), *profile.settings)}
    for name, setting in every.items():
        found = (layer[name] for layer in layers if name in layer)
        raw, origin = next(found, (None, Origin("default")))
        origins[name] = origin
        if origin.source != "default":
            values[setting.section][name] = _read(setting, raw, origin)
        elif setting.section == PRODUCT:
            values[PRODUCT][name] = setting.default
    values["server"]["product"] = values.pop(PRODUCT)
    return Config(**{section: make(**values[section]) for section, make in SECTIONS.items()}), origins


def _read(setting: Setting, raw: object, origin: Origin) -> Any:
    try:
        # Python has half a surrogate pair for each byte of the command line and the environment that it cannot decode.
        "".join(map(str, raw if isinstance(raw, list) else [raw])).encode(errors="surrogateescape").decode()
    except UnicodeError:
        raise ConfigError(f"{origin}: not UTF-8") from None
    try:
        return setting.from_text(raw) if isinstance(raw, str) else setting.from_toml(raw)
    except BadValue as problem:
        got = "another value" if setting.secret else quoted(raw)
        raise ConfigError(f"{origin}: expected {problem}, got {got}") from None


# --- command line ---------------------------------------------------------------------------------------------


def _read_command_line(line: CommandLine, profile: Profile, profiles: Profiles, unused: list[str]) -> Layer:
    """A list grows: `vectord serve A --models B` serves both. Of another setting's options, the last one counts.

    Appends to `unused` the options without effect.
    """
    layer: Layer = {"models": (line.models, Origin("command line"))} if line.models else {}
    by_flag = {flag: setting for setting in profile.settings for flag in setting.flags}
    for name, given in line.options.items():
        flag = name if name in by_flag else name.replace("--no-", "--", 1)
        if flag in profile.ignored_options:
            for text in given:
                profile.check_ignored(name, profile.ignored_options[flag], text)
            unused.append(name)
            continue
        if flag not in by_flag:
            raise ConfigError(f"{name} (command line): not an option here{_elsewhere(name, profiles)}")
        setting, origin, texts = by_flag[flag], Origin("command line", name), given
        if flag in setting.reads:
            text = ";".join(given) if flag in setting.repeated else given[-1]
            read = setting.reads[flag](text)
            if read is None and flag in setting.switches:  # the position of a switch that sets nothing
                continue
            if read is None:
                raise ConfigError(f"{origin}: expected {setting.expected}, got {quoted(text)}")
            texts = [read]
        if setting.type is tuple:
            before, origin = layer.get(setting.name, ([], origin))
            assert isinstance(before, list)
            layer[setting.name] = ([*before, *(item for text in texts for item in re.split("[,;]", text))], origin)
        else:
            layer[setting.name] = (texts[-1], origin)
    return layer


# --- environment ----------------------------------------------------------------------------------------------


def _read_environment(
    environ: Mapping[str, str],
    source: SettingSource,
    settings: Sequence[Setting],
    env_compat: bool,
    warnings: list[str],
    profiles: Profiles,
) -> Layer:
    """Append a warning for each bad value that is skipped. Raises ConfigError for a VECTORD_ name without a setting."""
    names = {"VECTORD_CONFIG", "VECTORD_PROFILE", *(name for setting in settings for name in setting.env)}
    if source == "environment":
        names.add("VECTORD_ENV_FILE")
    for name, value in environ.items():
        if not name.startswith(PREFIX) or name in names or _SERVICE_LINK.fullmatch(name):
            continue
        if name.endswith("_PORT") and _SERVICE_ADDRESS.fullmatch(value):
            continue
        known = (known for known in names if known.startswith(PREFIX))
        hint = _elsewhere(name, profiles) or nearest(name, known)
        raise ConfigError(f"unknown name {quoted(name)} ({source}){hint}")
    layer: Layer = {}
    for setting in settings:
        for name, text in _texts(setting, environ, env_compat):
            origin = Origin(source, name)
            if name in setting.lenient:
                try:
                    setting.from_text(text)
                except BadValue:
                    warnings.append(f"{origin}: expected {setting.expected}; the value is ignored")
                    continue
            layer[setting.name] = (text, origin)
            break
    return layer


def _names(setting: Setting, env_compat: bool) -> Iterable[str]:
    """The setting's variables that count, the one that wins first. env_compat: also without the prefix."""
    first, *others = setting.env
    return dict.fromkeys((first, setting.bare, *others) if env_compat else setting.env)


def _texts(setting: Setting, environ: Mapping[str, str], env_compat: bool) -> Iterator[tuple[str, str]]:
    """The setting's variables that are set, with their values in our terms, the one that wins first.

    An empty variable is unset: containers pass on variables without a value.
    """
    for name in _names(setting, env_compat):
        text: str | None = environ.get(name, "")
        if text is None or not text.strip():
            continue
        if name.endswith("PORT") and _SERVICE_ADDRESS.fullmatch(text.strip()):  # Kubernetes' address of a service
            continue
        if name in setting.reads:
            text = setting.reads[name](text.strip())
        # A synonym for the default, such as "auto", counts as unset.
        if text and setting.synonyms.get(text.strip().lower(), text) is not None:
            yield name, text


def _unread_env_file(cwd: Path, settings: Sequence[Setting], env_compat: bool, unused_keys: list[str]) -> Iterator[str]:
    """A note if .env, which does not count here, has settings. Appends to `unused_keys` if one of them is a key."""
    try:
        found = _read_env_file(cwd, ".env", False, [])
    except ConfigError:  # another program's
        return
    names = {name: setting.name for setting in settings for name, _ in _texts(setting, found, env_compat)}
    if names:
        yield f".env is not read, and sets {', '.join(names)}; to read it, start with --env-file .env"
    unused_keys += (
        f"{name} in .env does not protect this server; start with --env-file .env, or remove {name}"
        for name, setting in names.items()
        if setting in _CLIENT_KEYS
    )


def _read_env_file(cwd: Path, name: str | None, required: bool, notes: list[str]) -> Mapping[str, str]:
    """The file, if there is one. A $ in a value has no meaning. Appends to `notes` each line that is no setting."""
    path = cwd / (name or "")
    if not path.is_file():
        if required:
            raise ConfigError(f"env file {quoted(name or '')}: no such file")
        return {}
    from dotenv.parser import parse_stream  # noqa: PLC0415 - 20 ms

    try:
        with path.open(encoding="utf-8") as stream:
            bindings = list(parse_stream(stream))
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path.name} cannot be read: {plain_reason(problem)}") from problem
    for text, first_line in (one.original for one in bindings if one.error):
        line = first_line + text[: len(text) - len(text.lstrip())].count("\n")  # empty lines before it belong to it
        notes.append(f"{path.name}: line {line} is not NAME=VALUE, and is ignored")
    return {one.key: one.value for one in bindings if one.key is not None and one.value is not None}


def export_hub(config: ModelConfig, environ: MutableMapping[str, str]) -> None:
    """Write to `environ` the settings that huggingface_hub reads there when it is imported."""
    if config.hf_home is not None:
        environ["HF_HOME"] = config.hf_home
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):  # hub_cache already accounts for them
            environ.pop(name, None)
    if config.hub_cache is not None:
        environ["HF_HUB_CACHE"] = config.hub_cache
    if config.hf_endpoint is not None:
        environ["HF_ENDPOINT"] = config.hf_endpoint


# --- files ----------------------------------------------------------------------------------------------------


def find_profile(name: str, profiles: Profiles) -> Profile:
    """The profile of that name, in any case, with - or _ between words. Raises ConfigError, which lists them all."""
    known = name.lower().replace("_", "-")
    if known not in profiles and known != "default":
        hint = nearest(known, profiles) or f"; there are: {', '.join(profiles)}"
        raise ConfigError(f"unknown profile {quoted(name)}{hint}")
    return make_profile(known, profiles)


def layer_of(profile: Profile, cwd: Path) -> Layer:
    """The values that the profile sets, except for places that do not exist or cannot be used."""
    layer = _read_tables(profile.values, (*SETTINGS, *OF_PROFILES.values()), "profile", f"profile {profile.name}")
    for place in ("model_catalogue", "hub_cache"):  # in the working folder
        if place in layer and not (cwd / str(layer[place][0])).exists():
            del layer[place]
    if "hf_home" in layer and not os.access(str(layer["hf_home"][0]), os.R_OK | os.W_OK | os.X_OK):
        del layer["hf_home"]
    return layer


def _unwritable_home(profile: Profile) -> Iterator[str]:
    """A note, if the hf_home of the profile exists and this user cannot write to it."""
    home = profile.values.get("model", {}).get("hf_home")
    if home is not None and os.access(home, os.F_OK):  # Path.exists raises for a folder in another user's home
        yield (
            f"{home} is not used: this user cannot write there, so models are stored in the default cache; run the "
            "container as the folder's owner (--user), or give the volume to this user (chown, or fsGroup)"
        )


def _read_config_file(cwd: Path, named: str | None) -> tuple[str, Mapping[str, object], str | None]:
    """The config file's name and sections, and the profile that it names."""
    path = cwd / (named or CONFIG_FILE)
    if not path.is_file():
        if named:
            raise ConfigError(f"config file {quoted(named)}: no such file")
        return "", {}, None
    try:
        tables = tomllib.loads(path.read_text("utf-8-sig"))
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{path.name} is not TOML: {problem}") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path.name} cannot be read: {plain_reason(problem)}") from problem
    profile = tables.pop("profile", None)
    if profile is not None and not isinstance(profile, str):
        raise ConfigError(f"profile in {path.name}: expected the name of a profile, got {quoted(profile)}")
    return path.name, tables, profile


def _read_tables(tables: Mapping[str, object], settings: Sequence[Setting], source: SettingSource, title: str) -> Layer:
    layer: Layer = {}
    section_of = {setting.name: setting.section for setting in settings}
    known = dict.fromkeys([*SECTIONS, *section_of.values()])
    sections = ", ".join(known)

    def place(key: str) -> str:
        """The key's section, or the closest key."""
        return f"; it belongs in [{section_of[key]}]" if key in section_of else nearest(key, section_of)

    for section, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{section} in {title}: expected a section, one of {sections}{place(section)}")
        if section not in known:
            raise ConfigError(f"unknown section [{section}] in {title}; there are: {sections}")
        for key, value in table.items():
            if section_of.get(key) != section:
                raise ConfigError(f"unknown key {key} in [{section}] of {title}{place(key)}")
            layer[key] = (value, Origin(source, f"[{section}] {key}"))
    return layer


# --- words of error messages ----------------------------------------------------------------------------------


def _elsewhere(name: str, profiles: Profiles) -> str:
    """ "; it counts under the profile ..." for an option or variable of other profiles, or nothing."""
    flag = name.replace("--no-", "--", 1)
    found = [
        profile.name
        for profile in (make_profile(name, profiles) for name in profiles)
        if flag in profile.ignored_options
        or any(name in setting.env or flag in setting.flags for setting in profile.settings)
    ]
    return _only_under(found) if found else ""


def _only_under(profiles: Sequence[str]) -> str:
    return f"; it counts under the profile{'s'[: len(profiles) - 1]} {', '.join(profiles)} only"


def nearest(word: str, known: Iterable[str]) -> str:
    """ "; did you mean ...?" with the known name closest to `word`, or nothing."""
    import difflib  # noqa: PLC0415 - needed for errors only

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.75)  # below it, they are seldom related
    return f"; did you mean {close[0]}?" if close else ""


def quoted(raw: object) -> str:
    """The operator's value in quotes, on one line of at most 80 characters, without a password in a URL."""
    text = without_password(repr(raw))
    return text if len(text) <= 80 else text[:77] + "..."


def without_password(text: str) -> str:
    """The text with *** in place of the user and the password of each URL: up to its last @, as they may have a /."""
    text = re.sub(r"//\S*@", "//***@", text)
    return re.sub(r"([?&]\w*(?:key|password|secret|token)=)[^&\s]*", r"\1***", text, flags=re.IGNORECASE)
