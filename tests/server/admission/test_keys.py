"""Named keys in a file: what it may say, and how a change reaches a server that runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.server.admission.checks import check, check_admin
from tests.server.asgi import call
from tests.server.fakes import EMBED, FakeEngine, dialect, route
from tests.server.live import Reply

from vectord.config import ServerConfig
from vectord.errors import ConfigError, NoSuchRoute, Unauthorized
from vectord.server.admission import keys
from vectord.server.admission.keys import Key, Keys, KeysFile, new_key, read_keys
from vectord.server.http.app import create_app


def stanza(name: str, key: str = "", **further: object) -> str:
    """What stands in the file for `key`, by default one that reads like its name."""
    lines = [f'name = "{name}"', f'sha256 = "{sha256((key or name).encode()).hexdigest()}"']
    return "\n".join(["[[keys]]", *lines, *(f"{field} = {value}" for field, value in further.items()), ""])


def written(path: Path, *stanzas: str) -> Path:
    """The file, as a new one: an editor's replacement, which no clock is too coarse for."""
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join(stanzas) or "keys = []")
    fresh.chmod(0o600)
    return fresh.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_a_stanza_says_whose_a_key_is_and_what_it_may(path: Path) -> None:
    """All but the name and the digest may be left out."""
    limits = {"requests_per_minute": 60, "tokens_per_minute": 1_000, "lane": '"bulk"', "models": '["a", "b"]'}
    written(path, stanza("all", "secret", admin="true", **limits), stanza("none"))
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
        "keys = 3",
        "[[keys]",
        "[[keys]]\n" + "a = " + "[" * 5000,
        '[[keys]]\nname = "a"',
        '[[keys]]\nsha256 = "' + "0" * 64 + '"',
        stanza("a").replace("sha256", "sha257"),
        stanza("a")[:-10],
        stanza("a").replace("name", "lane"),
        stanza("10.0.0.1"),
        stanza("a b"),
        stanza("a", requests_per_minute=0),
        stanza("a", tokens_per_minute='"many"'),
        stanza("a", lane='"express"'),
        stanza("a", models='"a"'),
        stanza("a", admins="true"),
        stanza("a", "one") + stanza("a", "other"),
        stanza("a", "one") + stanza("b", "one"),
    ],
    ids=lambda text: text[:60].replace("\n", " "),
)
def test_a_broken_file_is_one_line(path: Path, text: str) -> None:
    """It names the file and what is wrong with it, and holds no digest."""
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        KeysFile(str(path))
    assert caught.value.message.startswith(f"--api-keys-file: {str(path)!r} ")
    assert "\n" not in caught.value.message
    assert sha256(b"one").hexdigest()[:8] not in caught.value.message


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    """A folder, nothing at all, what is no text, and what is far too large."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(keys.MAX_FILE_BYTES + 1)
    for name in (".", "absent", "bytes", "large", "\x00"):
        with pytest.raises(ConfigError):
            KeysFile(str(tmp_path / name))


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(path: Path, mode: int) -> None:
    """Whoever writes it gives themselves a key."""
    written(path, stanza("a")).chmod(mode)
    with pytest.raises(ConfigError, match="chmod go-w"):
        KeysFile(str(path))
    path.chmod(0o644)
    assert len(KeysFile(str(path)).current()) == 1


# --- a change -------------------------------------------------------------------------------------------------


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def passes(self) -> None:
        self.now_s += keys.CHECK_INTERVAL_S


def opens(known: Keys, key: str) -> bool:
    try:
        check(known, {"x-api-key": key})
    except Unauthorized:
        return False
    return True


def test_a_change_counts_within_a_second(path: Path) -> None:
    """New keys open, those taken out do not."""
    clock = Clock()
    known = Keys((), None, KeysFile(str(written(path, stanza("a"), stanza("b"))), clock))
    assert [opens(known, key) for key in "abc"] == [True, True, False]
    written(path, stanza("b"), stanza("c"))
    clock.passes()
    assert [opens(known, key) for key in "abc"] == [False, True, True]


def test_the_file_is_looked_at_once_a_second_at_most(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests come."""
    clock, looks = Clock(), []
    file = KeysFile(str(written(path, stanza("a"))), clock)
    monkeypatch.setattr(keys, "_version", looks.append)
    for _ in range(10):
        file.current()
    assert looks == []
    clock.passes()
    for _ in range(10):
        file.current()
    assert len(looks) == 1


@pytest.mark.parametrize("change", ["not TOML", "empty", "gone", "open to others"])
def test_a_broken_change_leaves_the_keys_as_they_were(
    path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log tells it once, without a digest, and what mends it counts."""
    clock = Clock()
    known = Keys((), None, KeysFile(str(written(path, stanza("a"))), clock))
    if change == "gone":
        path.unlink()
    else:
        written(path, {"not TOML": "[[", "empty": " ", "open to others": stanza("b")}[change])
        path.chmod(0o666 if change == "open to others" else 0o600)
    for _ in range(3):
        clock.passes()
        assert [opens(known, key) for key in "ab"] == [True, False]
    (record,) = caplog.records
    assert (record.levelno, "stay in force" in record.getMessage()) == (logging.ERROR, True)
    written(path, stanza("b"))
    clock.passes()
    assert [opens(known, key) for key in "ab"] == [False, True]


def test_no_keys_is_nobody_and_not_everybody(path: Path) -> None:
    """The file is there to shut the server, whatever stands in it."""
    known = Keys((), None, KeysFile(str(written(path))))
    assert not opens(known, "")
    with pytest.raises(Unauthorized):
        check(known, {})


def test_keys_of_the_file_and_of_the_settings_count_beside_each_other(path: Path) -> None:
    """API_KEY, API_TOKEN and the admin key go on as they were; those of the file have names."""
    known = Keys(("one", "two"), "admin", KeysFile(str(written(path, stanza("named")))))
    found = {key: check(known, {"authorization": f"Bearer {key}"}) for key in ("one", "two", "admin", "named")}
    assert {key: found and found.shared for key, found in found.items()} == {
        "one": True,
        "two": True,
        "admin": True,
        "named": False,
    }


def test_the_right_of_an_admin_comes_and_goes_with_the_file(path: Path) -> None:
    """Without any key that has it, the operator's routes do not exist."""
    clock = Clock()
    known = Keys((), None, KeysFile(str(written(path, stanza("a", admin="true"))), clock))
    assert check_admin(known, {"x-api-key": "a"}) is not None
    written(path, stanza("a"))
    clock.passes()
    with pytest.raises(NoSuchRoute):
        check_admin(known, {"x-api-key": "a"})


def test_nothing_that_opens_is_kept(path: Path) -> None:
    """Neither keys nor what they are looked up by can be computed from the file alone: each process has a secret."""
    file = KeysFile(str(written(path, stanza("a"))))
    one, other = Keys(("b",), None, file), Keys(("b",), None, file)
    one.lookup({}), other.lookup({})
    assert opens(one, "a") and opens(other, "a")
    assert not set(one._index) & set(other._index)
    assert sha256(b"a").digest() not in one._index


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


async def test_a_file_shuts_the_server(path: Path) -> None:
    """As one key does."""
    written(path, stanza("a"))
    assert [(await ask(path, key)).status for key in (None, "b", "a")] == [401, 401, 200]


async def test_who_has_a_key_of_their_own_is_the_client(path: Path) -> None:
    """For fair shares: its name from wherever it asks, with its models; others are their addresses."""
    written(path, stanza("a", models='["x"]'), stanza("b"))
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
async def test_a_keys_lane_outranks_what_its_requests_say(
    path: Path, own: str | None, sent: str | None, lane: str | None
) -> None:
    """It is the operator's word."""
    written(path, stanza("a", **({} if own is None else {"lane": f'"{own}"'})))
    engine = FakeEngine()
    await ask(path, "a", engine, {} if sent is None else {"x-vectord-lane": sent})
    assert [caller.lane for caller in engine.callers] == [lane]


async def test_the_log_has_the_name_and_never_the_key(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also of a request that came to nothing."""
    written(path, stanza("search-team", "zqsecret"))
    with caplog.at_level(logging.INFO):
        await ask(path, "zqsecret")
        await ask(path, "zqsecret", headers={"x-vectord-lane": "express"})
        await ask(path, "zqwrong")
    lines = [record for record in caplog.records if record.name == "vectord.requests"]
    assert [record.fields.get("key") for record in lines] == ["search-team", "search-team", None]  # type: ignore[attr-defined]
    assert "zq" not in repr([vars(record) for record in caplog.records])


async def test_a_dialect_sees_no_models_that_the_key_may_not_use(path: Path) -> None:
    """What it reads from a body may hang on them."""
    seen = []

    class Engine(FakeEngine):
        def models(self, caller: Any = None) -> Any:
            seen.append(getattr(caller, "models", None))
            return super().models()

    plain = route("first", "/v1/embed")

    def parse(incoming: Any) -> Any:
        len(incoming.models)
        return plain.parse(incoming)

    written(path, stanza("a", models='["x"]'))
    looking = route("first", "/v1/embed")
    looking = type(looking)(method="POST", path="/v1/embed", parse=parse, summary="", keys=looking.keys)
    assert (await ask(path, "a", Engine(), dialects=(dialect("first", looking),))).status == 200
    assert seen[-1] == {"x"}


# --- making one -----------------------------------------------------------------------------------------------


def test_a_new_key_opens_with_its_stanza(path: Path) -> None:
    """Random each time; the stanza does not tell it."""
    key, text = new_key("search")
    known = Keys((), None, KeysFile(str(written(path, text))))
    found = check(known, {"x-api-key": key})
    assert found is not None and found.name == "search"
    assert key not in text
    assert new_key("search")[0] != key
    assert len(key) > 40


@pytest.mark.parametrize("name", ["", "1a", "a b", 'a"\nadmin = true', "a" * 65, "10.0.0.1", "::1"])
def test_not_everything_is_a_name(name: str) -> None:
    """No address, and nothing that TOML would read as something else."""
    with pytest.raises(ConfigError) as caught:
        new_key(name)
    assert "\n" not in caught.value.message


def test_this_machine_tells_files_apart(path: Path) -> None:
    """What the tests of a change stand on."""
    before = keys._version(written(path, stanza("a")))
    assert keys._version(written(path, stanza("b"))) != before
    assert os.name == "posix"
