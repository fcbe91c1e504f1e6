"""postgres.py, with a real PostgreSQL and pgvector: rows are stored once, with their columns and vectors."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.bulk.makers import FakeEmbedder, job_of, rows_of, run_job, vector_of, write_input
from tests.ports import free_port
from tests.real_postgres import postgres_at, programs_in

from vectord.bulk.inputs import find_source
from vectord.bulk.job import BulkFailed
from vectord.bulk.pipeline import Pipeline
from vectord.errors import ConfigError

PROGRAMS = programs_in(Path(__file__).parents[2] / ".venv-clients")
pytestmark = pytest.mark.skipif(
    PROGRAMS is None, reason="no PostgreSQL can run here: it is in .venv-clients, root needs setpriv"
)
PATIENCE_S = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    assert PROGRAMS is not None
    with postgres_at(free_port(), tmp_path_factory.mktemp("database"), PROGRAMS) as url:
        yield url


@pytest.fixture
def database(server: str) -> Iterator[psycopg.Connection[Any]]:
    """Without tables."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        yield connection


def options(server: str, table: str = "docs", **more: Any) -> dict[str, Any]:
    return {"out": Path(table), "out_url": f"{server}/{table}", **more}


async def test_a_row_becomes_a_row_of_a_table_that_can_be_searched(
    tmp_path: Path, server: str, database: psycopg.Connection[Any]
) -> None:
    """Columns have the types of their values, and each kind of vectors has a type of pgvector."""
    rows = [
        {"id": 1, "text": "one", "price": 1.5, "ok": True, "tags": ["a", "b"], 'a "b" %s': None},
        {"id": 2, "text": "two", "price": 2, "ok": False, "tags": [], 'a "b" %s': "x"},
    ]
    kinds = frozenset({"dense", "sparse", "colbert"})
    source = write_input(tmp_path / "in.jsonl", rows)
    summary = await run_job(source, **options(server, outputs=kinds))
    assert summary.out == server.replace("postgres@", "") + "/docs"
    types = database.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'docs'::regclass "
        "AND attnum > 0"
    ).fetchall()
    assert dict(types) == {
        "id": "bigint",
        "text": "text",
        "price": "double precision",
        "ok": "boolean",
        "tags": "jsonb",
        'a "b" %s': "text",
        "dense": "vector(4)",
        "sparse": "sparsevec(1000000)",
        "colbert": "vector(3)[]",
        "vectord_fingerprint": "text",
    }
    columns = 'id, text, price, ok, tags, "a ""b"" %s"'
    stored = database.execute(f"SELECT {columns} FROM docs ORDER BY id").fetchall()
    assert [dict(zip(rows[0], row, strict=True)) for row in stored] == rows
    vector = json.dumps(vector_of("two").tolist())
    nearest = database.execute("SELECT id FROM docs ORDER BY dense <=> %s LIMIT 1", [vector]).fetchone()
    assert nearest == (2,)
    (others,) = database.execute("SELECT ARRAY[sparse::text, colbert::text] FROM docs WHERE id = 1").fetchall()
    assert others == (["{1:1,2:1,3:1}/1000000", '{"[3,3,3]","[3,3,3]","[3,3,3]"}'],)


@pytest.mark.parametrize(("numbers", "found"), [("float16", "halfvec(4)"), ("ubinary", "bit(32)")])
async def test_dense_numbers_have_the_types_of_pgvector(
    tmp_path: Path, server: str, database: psycopg.Connection[Any], numbers: str, found: str
) -> None:
    """float16 becomes halfvec, and ubinary bit."""

    class Packed(FakeEmbedder):
        async def embed(self, texts: Sequence[str]) -> Any:
            vectors = await super().embed(texts)
            if numbers == "ubinary":
                object.__setattr__(vectors, "dense", (vectors.dense * 255).astype("uint8"))
            return vectors

    source = write_input(tmp_path / "in.csv", rows_of(3))
    await run_job(source, embedder=Packed(), **options(server, numbers=numbers))
    assert database.execute("SELECT count(dense) FROM docs").fetchone() == (3,)
    with pytest.raises(ConfigError, match=re.escape(f"is {found}, and the vectors are vector(4)")):
        await run_job(source, **options(server))


async def test_a_repeated_job_embeds_only_new_and_changed_rows(
    tmp_path: Path, server: str, database: psycopg.Connection[Any]
) -> None:
    """Whichever column has changed. --restart and other weights embed all rows. No row is stored twice."""
    rows = rows_of(300)
    source = write_input(tmp_path / "in.jsonl", rows)
    await run_job(source, **options(server))
    rows[7]["text"] = "changed"
    rows[8]["more"] = None  # a column that the table lacks
    source = write_input(tmp_path / "in.jsonl", [*rows[:8], *rows[9:], {"id": "300", "text": "new"}])
    again = FakeEmbedder()
    summary = await run_job(source, embedder=again, **options(server))
    assert again.seen == ["changed", "new"]
    assert (summary.rows, summary.resumed_from) == (300, 298)
    assert database.execute("SELECT count(*), count(DISTINCT id) FROM docs").fetchone() == (301, 301)
    for more, space in (({"restart": True}, "space"), ({}, "other")):
        again = FakeEmbedder(space=space)
        await run_job(source, embedder=again, **options(server, **more))
        assert len(again.seen) == 300
    assert database.execute("SELECT count(*) FROM docs").fetchone() == (301,)


async def test_rows_without_an_id_are_stored_once(
    tmp_path: Path, server: str, database: psycopg.Connection[Any]
) -> None:
    """Their id is a hash of the row. --id-column names another column."""
    source = write_input(tmp_path / "in.jsonl", [{"text": "a", "n": 1}, {"text": "b", "n": 2}, {"text": "a", "n": 1}])
    for _ in range(2):
        await run_job(source, **options(server))
    assert database.execute("SELECT text, n FROM docs ORDER BY n").fetchall() == [("a", 1), ("b", 2)]
    await run_job(source, **options(server, "others", id_column="n"))
    assert database.execute("SELECT n FROM others ORDER BY n").fetchall() == [(1,), (2,)]
    with pytest.raises(ConfigError, match="--id-column: IN has no column 'key'"):
        await run_job(source, **options(server, id_column="key"))


async def test_a_table_of_the_user_receives_the_rows(
    tmp_path: Path, server: str, database: psycopg.Connection[Any]
) -> None:
    """Its columns keep their types, and further columns their values."""
    database.execute("CREATE EXTENSION vector")
    database.execute(
        "CREATE SCHEMA app; CREATE TABLE app.docs (id integer UNIQUE, text varchar(90), mine text DEFAULT 'kept', "
        "dense vector, vectord_fingerprint text); INSERT INTO app.docs VALUES (0, 'old', 'precious')"
    )
    await run_job(write_input(tmp_path / "in.csv", rows_of(2)), **options(server, "app.docs"))
    found = database.execute("SELECT id, text, mine FROM app.docs ORDER BY id").fetchall()
    assert found == [(0, "text 0, ünïcode", "precious"), (1, "text 1, ünïcode", "kept")]
    database.execute("DROP SCHEMA app CASCADE")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("id text PRIMARY KEY, dense vector(4), vectord_fingerprint text", "has no column 'text'"),
        ("id text, text text, dense vector(4), vectord_fingerprint text", "no unique or exclusion constraint"),
        ("id text PRIMARY KEY, text text, dense vector(5), vectord_fingerprint text", r"dense .* is vector\(5\)"),
    ],
    ids=["column", "unique", "dimensions"],
)
async def test_a_table_that_cannot_hold_the_rows_is_refused_before_the_first_text(
    tmp_path: Path, server: str, database: psycopg.Connection[Any], table: str, message: str
) -> None:
    """Also before the model is loaded."""
    database.execute(f"CREATE EXTENSION vector; CREATE TABLE docs ({table})")
    embedder = FakeEmbedder(before=lambda texts: pytest.fail("the model was used"))
    with pytest.raises(ConfigError, match=message):
        await run_job(write_input(tmp_path / "in.csv", rows_of(2)), embedder=embedder, **options(server))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@127.0.0.1:1/db/docs",
        "postgresql://me:s3cret@127.0.0.1:port/db/docs",
        "postgresql://me:s3cret@127.0.0.1:1/db/docs?sslmode=s3cret",
        "postgresql://me:s3cret@127.0.0.1/docs",
    ],
)
def test_an_error_does_not_contain_the_password(tmp_path: Path, url: str) -> None:
    """Nor does the description of the job."""
    job = job_of(write_input(tmp_path / "in.csv", rows_of(2)), Path("docs"), out_url=url)
    with pytest.raises(ConfigError) as refused:
        Pipeline(job, find_source(job))
    assert "s3cret" not in f"{refused.value} {job}"


async def test_a_lost_connection_is_opened_again(
    tmp_path: Path, server: str, database: psycopg.Connection[Any]
) -> None:
    """Without losing a row."""
    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'postgres'"
    )

    def lose(texts: Sequence[str]) -> None:
        if "text 300, ünïcode" in texts:
            database.execute(kill)

    source = write_input(tmp_path / "in.jsonl", rows_of(600))
    await run_job(source, embedder=FakeEmbedder(before=lose), **options(server, part_rows=100))
    assert database.execute("SELECT count(*) FROM docs").fetchone() == (600,)


async def test_an_error_of_the_database_has_the_number_of_stored_rows(
    tmp_path: Path, server: str, database: psycopg.Connection[Any]
) -> None:
    """Such as a constraint of the user's table."""
    columns = "id text PRIMARY KEY CHECK (id <> '350'), text text, dense vector, vectord_fingerprint text"
    database.execute(f"CREATE EXTENSION vector; CREATE TABLE docs ({columns})")
    source = write_input(tmp_path / "in.jsonl", rows_of(600))
    with pytest.raises(BulkFailed, match=r"violates check constraint .*; 300 rows of this run are stored"):
        await run_job(source, **options(server, part_rows=100))


async def test_a_row_without_vectors_is_tried_again(
    tmp_path: Path, server: str, database: psycopg.Connection[Any]
) -> None:
    """With --on-error null it is stored with its reason."""
    source = write_input(tmp_path / "in.csv", [*rows_of(2), {"id": "2", "text": "poison"}])
    for _ in range(2):
        again = FakeEmbedder()
        await run_job(source, embedder=again, **options(server, on_error="null"))
    assert again.seen == ["poison"]
    found = database.execute("SELECT id, dense IS NULL, error FROM docs ORDER BY id").fetchall()
    assert found == [("0", False, None), ("1", False, None), ("2", True, "it is poison")]


async def test_shards_share_a_table(tmp_path: Path, server: str, database: psycopg.Connection[Any]) -> None:
    """Each row is embedded by one of them."""
    source = write_input(tmp_path / "in.jsonl", rows_of(450))
    seen: list[str] = []
    for number in (2, 1, 3):
        embedder = FakeEmbedder()
        await run_job(source, embedder=embedder, **options(server, part_rows=100, shard=(number, 3)))
        seen += embedder.seen
    assert sorted(seen) == sorted(row["text"] for row in rows_of(450))
    assert database.execute("SELECT count(*) FROM docs").fetchone() == (450,)


def count(database: psycopg.Connection[Any]) -> int:
    """The rows of the table; 0 if there is none."""
    if database.execute("SELECT to_regclass('docs')").fetchone() == (None,):
        return 0
    (found,) = database.execute("SELECT count(*) FROM docs").fetchall()
    return int(found[0])


def test_a_killed_job_continues(tmp_path: Path, server: str, database: psycopg.Connection[Any]) -> None:
    """kill -9 in the middle: the same command embeds the other rows, and stores none twice."""
    source = write_input(tmp_path / "in.jsonl", rows_of(20_000))
    command = [sys.executable, "-m", "vectord", "bulk", str(source), f"{server}/docs", "--backend", "fake", "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not count(database):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the job ended before it was killed"
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert 0 < json.loads(done.stdout)["resumed_from"] < 20_000
    found = database.execute("SELECT count(*), count(DISTINCT id), count(dense) FROM docs").fetchone()
    assert found == (20_000, 20_000, 20_000)
