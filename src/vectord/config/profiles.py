"""A profile: what one product sets, its own names of the settings, and the settings that only it has.

products/common/profiles.py reads these fields from a file in the product's folder. A product's names count under its
profile only, and no module here knows a product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from vectord.config.declared import Declaration, Names
from vectord.config.settings import OF_PROFILES, SETTINGS, Setting, make_setting, option_name
from vectord.errors import ConfigError

PRODUCT = "product"  # the section of the settings that only the product reads
Profiles: TypeAlias = Mapping[str, Mapping[str, Any]]  # the fields of each profile, by its name


@dataclass(frozen=True, kw_only=True)
class Profile:
    name: str
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of settings, by section
    required: Sequence[str] = ()  # settings that the operator must set
    # A setting to the product's variables. Those of OF_PROFILES count under the profiles that list them here.
    names: Mapping[str, Names] = field(default_factory=dict)
    # Whole numbers that only the product reads: meaning, limits and default. Without a default, they may be unset.
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: str | None = None  # variables without this prefix are options too; None: they are not
    switches: Sequence[str] = ()  # variables whose options need no value
    repeated: Sequence[str] = ()  # variables with a value for each model; their options may be repeated
    as_written: Sequence[str] = ()  # variables whose options have no reader
    lenient: bool = False  # a bad number in a variable is logged and skipped
    env_file: str | None = None  # that the product reads in the working folder
    without_effect: Mapping[str, str] = field(default_factory=dict)  # variables, with the only permitted value or ""
    instead: Mapping[str, str] = field(default_factory=dict)  # the product's other options, with what replaces them

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """Every setting that counts under this profile, with all its names."""
        every = {setting.name: setting for setting in SETTINGS}
        own = {}
        for name, fields in self.own.items():
            declaration = Declaration(meaning=fields["meaning"], limits=tuple(fields["limits"]))
            default = fields.get("default")
            own[name] = make_setting(
                declaration, section=PRODUCT, name=name, type=int, optional=default is None, default=default
            )
        for name in (*self.names, *own):
            setting = own.get(name) or every.get(name) or OF_PROFILES[name]
            every[name] = self._named(setting, self.names.get(name, {}))
        return tuple(every.values())

    @property
    def variables(self) -> frozenset[str]:
        """The names that other profiles lack, or give to other settings."""
        return frozenset(name.upper() for name in (*self.names, *self.own)).union(*self.names.values())

    @cached_property
    def ignored_options(self) -> Mapping[str, str]:
        """The options without effect, with their variables."""
        return {} if self.options is None else {option_name(name, self.options): name for name in self.without_effect}

    def check_ignored(self, name: str, variable: str, text: str) -> None:
        """Raises ConfigError for a value that would change vectors on the product's own server."""
        only = self.without_effect[variable]
        if only and not {only}.issuperset(filter(None, text.split(";"))):
            raise ConfigError(f"{name}: expected {only}, the only value that is supported")

    def _named(self, setting: Setting, names: Names) -> Setting:
        """The setting with the product's names: after its own, before those of libraries."""
        env = tuple(dict.fromkeys((*setting.env[:1], *names, *setting.env[1:])))
        options = {} if self.options is None else {option_name(name, self.options): name for name in names}
        readers = {variable: read for variable, read in names.items() if read is not None}
        read = readers.keys() - self.as_written
        of_options = {option: readers[variable] for option, variable in options.items() if variable in read}
        is_lenient = self.lenient and setting.type in (int, float)
        own = () if names and not setting.of_profiles else (setting.bare,)  # the product has that name too
        return replace(
            setting,
            env=env,
            flags=tuple(dict.fromkeys((*setting.flags, *options))),
            reads={**setting.reads, **readers, **of_options},
            switches=frozenset(option for option, variable in options.items() if variable in self.switches),
            repeated=frozenset(option for option, variable in options.items() if variable in self.repeated),
            lenient=frozenset((*own, *names) if is_lenient else ()),
        )


def make_profile(name: str, profiles: Profiles) -> Profile:
    return Profile(name=name, **profiles.get(name, {}))
