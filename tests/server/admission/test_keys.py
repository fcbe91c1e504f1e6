"""Keys in requests, and the keys file: its contents, and changes while the server runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.clock import Clock
from tests.keys import entry, keys_file
from tests.server.admission.checks import check, check_admin
from tests.server.asgi import call
from tests.server.fakes import EMBED, FakeEngine, dialect, route
from tests.server.live import Reply

from vectord.config import ServerConfig
from vectord.errors import ConfigError, NoSuchRoute, Unauthorized
from vectord.server.admission import keys
from vectord.server.admission.keys import Key, Keys, KeysFile, new_key, read_keys
from vectord.server.http.app import create_app

# --- keys ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer s\xc3\xa9cret"},
        {"authorization": "bearer s\xc3\xa9cret"},
        {"authorization": "BEARER  s\xc3\xa9cret "},
        {"authorization": "s\xc3\xa9cret"},
        {"x-api-key": "s\xc3\xa9cret"},
        {"api-key": "s\xc3\xa9cret"},
    ],
    ids=["bearer", "lower case", "blanks", "bare", "x-api-key", "api-key"],
)
def test_a_key_is_accepted_in_every_form(headers: dict[str, str]) -> None:
    """Bearer in any case, llama-index's bare value, x-api-key or Azure's api-key; headers are latin-1, keys UTF-8."""
    check(Keys({"api_key": "s\xe9cret"}), headers)


@pytest.mark.parametrize(
    ("authorization", "status"), [("Bearer k", 200), ("bearer k", 200), ("k", 401), ("Basic k", 401)]
)
async def test_the_imitated_product_decides_whether_a_key_needs_its_scheme(authorization: str, status: int) -> None:
    """Smart Embedder's profile refuses `Authorization: KEY`. Every other server accepts it, as LlamaIndex sends it."""
    strict = replace(EMBED, requires_scheme=True)
    for imitates, expected in (("first", status), (None, 401 if authorization == "Basic k" else 200)):
        app = create_app(FakeEngine(), [strict], ServerConfig(api_key="k", imitates=imitates))
        answer = await call(app, "POST", "/v1/embed", b'{"inputs": ["a"]}', headers={"authorization": authorization})
        assert answer.status == expected


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer "},
        {"authorization": "Bearer secre"},
        {"authorization": "Basic secret"},
        {"authorization": "Bearer \xff"},
        {"x-api-key": ""},
    ],
    ids=repr,
)
def test_other_values_are_refused(headers: dict[str, str]) -> None:
    """No prefix, other scheme or other bytes."""
    with pytest.raises(Unauthorized):
        check(Keys({"api_key": "secret"}), headers)


def test_the_admin_key_opens_ordinary_routes() -> None:
    """Without an ordinary key the server stays open, with or without an admin key."""
    known = Keys({"api_key": "secret"}, "admin")
    check(known, {"x-api-key": "secret"})
    check(known, {"x-api-key": "admin"})
    with pytest.raises(Unauthorized):
        check(known, {"x-api-key": ""})
    check(Keys({}, "admin"), {})


@pytest.mark.parametrize("admin_key", [None, ""])
def test_without_configured_keys_the_server_is_open(admin_key: str | None) -> None:
    """A key in a request has no effect, and an empty admin key counts as unset."""
    known = Keys({}, admin_key)
    for headers in ({}, {"authorization": "Bearer whatever"}, {"x-api-key": ""}):
        check(known, headers)
        with pytest.raises(NoSuchRoute):
            check_admin(known, headers)


# --- the keys file ---------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_an_entry_has_a_name_and_rights(path: Path) -> None:
    """Only name and digest are required."""
    limits = {"requests_per_minute": 60, "tokens_per_minute": 1_000, "lane": '"bulk"', "models": '["a", "b"]'}
    keys_file(path.parent, entry("all", "secret", admin="true", **limits), entry("none"))
    all_of_it, none = read_keys(path)
    assert all_of_it == Key(
        name="all",
        digest=sha256(b"secret").digest(),
        admin=True,
        models=frozenset("ab"),
        requests_per_minute=60,
        tokens_per_minute=1_000,
        lane="bulk",
    )
    assert none == Key(name="none", digest=sha256(b"none").digest())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[[keys]",
        "[[keys]]\n" + "a = " + "[" * 5000,
        '[[keys]]\nname = "a"',
        entry("a")[:-10],
        entry("10.0.0.1"),
        entry("a", requests_per_minute=0),
        entry("a", admins="true"),
        entry("a", "one") + entry("a", "other"),
        entry("a", "one") + entry("b", "one"),
    ],
    ids=lambda text: text[:60].replace("\n", " "),
)
def test_an_invalid_file_is_a_one_line_error(path: Path, text: str) -> None:
    """The error names the file and the fault, and contains no digest."""
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        KeysFile(str(path))
    assert caught.value.message.startswith(f"--api-keys-file: {str(path)!r} ")
    assert "\n" not in caught.value.message
    assert sha256(b"one").hexdigest()[:8] not in caught.value.message


def test_an_unreadable_file_is_a_one_line_error(tmp_path: Path) -> None:
    """A folder, a pipe, which would block, a missing file, and bytes that are not text."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    os.mkfifo(tmp_path / "pipe")
    for name in (".", "pipe", "absent", "bytes", "\x00"):
        with pytest.raises(ConfigError):
            KeysFile(str(tmp_path / name))


def test_a_file_that_others_may_write_is_refused(path: Path) -> None:
    """Other users could add their own keys."""
    keys_file(path.parent, entry("a"))
    for mode in (0o620, 0o602):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="chmod go-w"):
            KeysFile(str(path))
    path.chmod(0o644)
    assert len(KeysFile(str(path)).current()) == 1


# --- a change -------------------------------------------------------------------------------------------------


def opens(known: Keys, key: str) -> bool:
    try:
        check(known, {"x-api-key": key})
    except Unauthorized:
        return False
    return True


def test_a_change_takes_effect_within_a_second(path: Path) -> None:
    """Added keys are accepted, removed keys are not."""
    clock = Clock()
    known = Keys({}, None, KeysFile(keys_file(path.parent, entry("a"), entry("b")), clock))
    assert [opens(known, key) for key in "abc"] == [True, True, False]
    keys_file(path.parent, entry("b"), entry("c"))
    clock.now_s += keys.CHECK_INTERVAL_S
    assert [opens(known, key) for key in "abc"] == [False, True, True]


@pytest.mark.parametrize("change", ["not TOML", "empty", "open to others"])
def test_an_invalid_change_keeps_the_previous_keys(path: Path, change: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log reports it once, without a digest, and a correction takes effect."""
    clock = Clock()
    known = Keys({}, None, KeysFile(keys_file(path.parent, entry("a")), clock))
    keys_file(path.parent, {"not TOML": "[[", "empty": " ", "open to others": entry("b")}[change])
    path.chmod(0o666 if change == "open to others" else 0o600)
    for _ in range(3):
        clock.now_s += keys.CHECK_INTERVAL_S
        assert [opens(known, key) for key in "ab"] == [True, False]
    (record,) = caplog.records
    assert (record.levelno, "stay in force" in record.getMessage()) == (logging.ERROR, True)
    keys_file(path.parent, entry("b"))
    clock.now_s += keys.CHECK_INTERVAL_S
    assert [opens(known, key) for key in "ab"] == [False, True]


def test_a_deleted_file_has_no_keys(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They stayed valid until the server ended. A new file takes effect."""
    clock = Clock()
    known = Keys({}, None, KeysFile(keys_file(path.parent, entry("a")), clock))
    path.unlink()
    clock.now_s += keys.CHECK_INTERVAL_S
    assert not opens(known, "a")
    assert ["deleted" in record.getMessage() for record in caplog.records] == [True]
    keys_file(path.parent, entry("a"))
    clock.now_s += keys.CHECK_INTERVAL_S
    assert opens(known, "a")


def test_no_key_of_the_file_has_the_name_of_one_in_the_settings(path: Path) -> None:
    """The name owns stored files and batches: a key called api_key read those of --api-key."""
    names = ("api_key", "api_token", "admin_key")
    known = Keys({"api_key": "one", "api_token": "two"}, "three", KeysFile(keys_file(path.parent, *map(entry, names))))
    found = [check(known, {"x-api-key": key}) for key in ("one", "two", "three", *names)]
    assert len({key.name for key in found if key is not None}) == 6
    assert known.named("api_key") == found[3]


def test_the_admin_right_follows_the_file(path: Path) -> None:
    """Without a key that has it, the admin routes do not exist."""
    clock = Clock()
    known = Keys({}, None, KeysFile(keys_file(path.parent, entry("a", admin="true")), clock))
    assert check_admin(known, {"x-api-key": "a"}) is not None
    keys_file(path.parent, entry("a"))
    clock.now_s += keys.CHECK_INTERVAL_S
    with pytest.raises(NoSuchRoute):
        check_admin(known, {"x-api-key": "a"})


# --- a server -------------------------------------------------------------------------------------------------


async def ask(
    path: Path,
    key: str | None,
    engine: FakeEngine | None = None,
    headers: Mapping[str, str] | None = None,
    dialects: tuple[Any, ...] = (EMBED,),
) -> Reply:
    app = create_app(engine or FakeEngine(), dialects, ServerConfig(api_keys_file=str(path)))
    sent = {} if key is None else {"authorization": f"Bearer {key}"}
    return await call(app, "POST", "/v1/embed", b'{"input": "hello"}', headers=sent | dict(headers or {}))


async def test_a_keys_file_closes_the_server(path: Path) -> None:
    keys_file(path.parent, entry("a"))
    assert [(await ask(path, key)).status for key in (None, "b", "a")] == [401, 401, 200]


async def test_a_named_key_identifies_the_client(path: Path) -> None:
    """Its name counts for fair shares from every address; other clients are their addresses."""
    keys_file(path.parent, entry("a", models='["x"]'), entry("b"))
    engine = FakeEngine()
    for key in "ab":
        await ask(path, key, engine)
    assert [(caller.client, caller.models) for caller in engine.callers] == [("a", {"x"}), ("b", None)]
    app = create_app(engine, [EMBED], ServerConfig(api_keys_file=str(path), api_key="shared"))
    await call(app, "POST", "/v1/embed", b'{"input": "hello"}', headers={"x-api-key": "shared"})
    assert engine.callers[-1].client == "10.0.0.1"


@pytest.mark.parametrize(
    ("own", "sent", "lane"),
    [("bulk", None, "bulk"), ("bulk", "interactive", "bulk"), (None, "interactive", "interactive"), (None, None, None)],
)
async def test_a_keys_lane_overrides_the_header(
    path: Path, own: str | None, sent: str | None, lane: str | None
) -> None:
    keys_file(path.parent, entry("a", **({} if own is None else {"lane": f'"{own}"'})))
    engine = FakeEngine()
    await ask(path, "a", engine, {} if sent is None else {"x-vectord-lane": sent})
    assert [caller.lane for caller in engine.callers] == [lane]


async def test_two_keys_of_the_settings_are_two_clients(caplog: pytest.LogCaptureFixture) -> None:
    """API_KEY and API_TOKEN: in fair shares and in the log. A single key is shared by all clients."""
    engine = FakeEngine()
    app = create_app(engine, [EMBED], ServerConfig(api_key="one", api_token="two"))
    with caplog.at_level(logging.INFO):
        for key in ("one", "two"):
            await call(app, "POST", "/v1/embed", b'{"input": "hello"}', headers={"x-api-key": key})
    assert [caller.client for caller in engine.callers] == ["settings/api_key", "settings/api_token"]
    lines = [record for record in caplog.records if record.name == "vectord.requests"]
    assert [record.fields.get("key") for record in lines] == [
        "settings/api_key",
        "settings/api_token",
    ]  # type: ignore[attr-defined]
    app = create_app(engine, [EMBED], ServerConfig(api_token="two"))
    await call(app, "POST", "/v1/embed", b'{"input": "hello"}', headers={"x-api-key": "two"})
    assert engine.callers[-1].client == "10.0.0.1"


async def test_the_log_has_the_name_and_never_the_key(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also for a failed request."""
    keys_file(path.parent, entry("search-team", "zqsecret"))
    with caplog.at_level(logging.INFO):
        await ask(path, "zqsecret")
        await ask(path, "zqsecret", headers={"x-vectord-lane": "express"})
        await ask(path, "zqwrong")
    lines = [record for record in caplog.records if record.name == "vectord.requests"]
    assert [record.fields.get("key") for record in lines] == ["search-team", "search-team", None]  # type: ignore[attr-defined]
    assert "zq" not in repr([vars(record) for record in caplog.records])


async def test_a_product_sees_only_the_models_of_the_key(path: Path) -> None:
    """Parsing may depend on the served models."""
    seen = []

    class Engine(FakeEngine):
        def models(self, caller: Any = None) -> Any:
            seen.append(getattr(caller, "models", None))
            return super().models()

    plain = route("first", "/v1/embed")

    def parse(incoming: Any) -> Any:
        len(incoming.models)
        return plain.parse(incoming)

    keys_file(path.parent, entry("a", models='["x"]'))
    looking = route("first", "/v1/embed")
    looking = type(looking)(method="POST", path="/v1/embed", parse=parse, summary="")
    assert (await ask(path, "a", Engine(), dialects=(dialect("first", looking),))).status == 200
    assert seen[-1] == {"x"}


# --- making one -----------------------------------------------------------------------------------------------


def test_a_new_key_is_accepted_with_its_entry(path: Path) -> None:
    """Keys are random, and the entry does not contain the key."""
    key, text = new_key("search")
    known = Keys({}, None, KeysFile(keys_file(path.parent, f"\N{BYTE ORDER MARK}{text}")))
    found = check(known, {"x-api-key": key})
    assert found is not None and found.name == "search"
    assert key not in text
    assert new_key("search")[0] != key
    assert len(key) > 40


@pytest.mark.parametrize("name", ["", "1a", "a b", 'a"\nadmin = true', "a" * 65, "10.0.0.1", "::1"])
def test_invalid_names_are_refused(name: str) -> None:
    """Addresses, and text that TOML would read differently."""
    with pytest.raises(ConfigError) as caught:
        new_key(name)
    assert "\n" not in caught.value.message
