"""postgres.py, with a real PostgreSQL and pgvector: rows are stored once, with their columns and vectors."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.bulk.makers import CHUNK, FakeEmbedder, job_of, rows_of, run_job, vector_of, write_input
from tests.pdfs import pdf_of
from tests.ports import free_port
from tests.real_postgres import postgres_at, programs_in
from tests.towers import image_of, media_of

from vectord.bulk.inputs import find_source
from vectord.bulk.job import BulkFailed, RetryLater
from vectord.bulk.pipeline import REQUEST, Pipeline
from vectord.bulk.postgres import PostgresOutput
from vectord.errors import ConfigError
from vectord.schema import ChunkOptions

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


async def test_a_password_may_be_a_word_of_a_message(
    server: str, tmp_path: Path, database: psycopg.Connection[Any]
) -> None:
    """Without a host, libpq takes the default one."""
    source = write_input(tmp_path / "in.csv", rows_of(2))
    with pytest.raises(ConfigError, match=r'database "none" does not exist'):
        await run_job(source, **options(re.sub("//.*@(.*)/.*", r"//postgres:none@\1/none", server)))
    address = urlsplit(server)
    with pytest.raises(ConfigError, match=r"OUT: postgresql:///postgres/docs: .*/nowhere"):
        await run_job(source, **options("postgresql:///postgres", "docs?host=/nowhere"))
    at = f"host={address.hostname}&port={address.port}&user={address.username}"
    await run_job(source, **options("postgresql:///postgres", f"docs?{at}"))
    assert count(database) == 2


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


async def test_a_shorter_text_leaves_no_old_chunks(
    tmp_path: Path, server: str, database: psycopg.Connection[Any]
) -> None:
    """The key of a chunk is the row's id and its number. Unchanged rows are not embedded again; of several rows with
    one id, only the chunks of the last one are kept."""
    rows = [{"id": i, "text": f"text {i}, " + "lorem ipsum " * 9} for i in range(200)]
    await run_job(write_input(tmp_path / "in.jsonl", rows), **options(server, chunk=CHUNK))
    rows[7]["text"], rows[8]["text"] = "short", "a longer text than before: " + "lorem ipsum " * 20
    source = write_input(tmp_path / "in.jsonl", [*rows, {"id": 9, "text": "long " * 9}, {"id": 9, "text": "last"}])
    again = FakeEmbedder()
    summary = await run_job(source, embedder=again, **options(server, chunk=CHUNK))
    assert summary.resumed_from == 198
    stored = database.execute("SELECT string_agg(text, '' ORDER BY chunk) FROM docs GROUP BY id ORDER BY id").fetchall()
    rows[9]["text"] = "last"
    assert stored == [(row["text"],) for row in rows]
    wrong = (
        "SELECT count(*) FROM docs WHERE chunk >= chunks OR dense IS NULL OR chunk_stop - chunk_start <> length(text)"
    )
    assert database.execute(wrong).fetchone() == (0,)
    await run_job(write_input(tmp_path / "in.jsonl", rows), **options(server, chunk=ChunkOptions(max_tokens=9)))
    with pytest.raises(ConfigError, match="docs has chunks; set --chunk, or name a new one"):
        await run_job(source, **options(server))
    await run_job(source, **options(server, "others"))
    with pytest.raises(ConfigError, match="others has whole texts; leave out --chunk, or name a new one"):
        await run_job(source, **options(server, "others", chunk=CHUNK))


async def test_a_row_with_a_failed_chunk_is_tried_again(
    tmp_path: Path, server: str, database: psycopg.Connection[Any]
) -> None:
    """With all its chunks; its other chunks are stored."""
    source = write_input(tmp_path / "in.csv", [{"id": "1", "text": "8 signs poison"}, {"id": "2", "text": "a"}])
    for _ in range(2):
        again = FakeEmbedder()
        await run_job(source, embedder=again, **options(server, chunk=CHUNK, on_error="null"))
    assert again.seen == ["8 signs ", "poison"]
    found = database.execute("SELECT id, chunk, dense IS NULL, error FROM docs ORDER BY id, chunk").fetchall()
    assert found == [("1", 0, False, None), ("1", 1, True, "it is poison"), ("2", 0, False, None)]


async def test_another_column_of_texts_is_embedded_again(
    tmp_path: Path, server: str, database: psycopg.Connection[Any]
) -> None:
    """Vectors of two columns are up to date in one table, by two prefixes."""
    source = write_input(tmp_path / "in.csv", [{"id": "1", "title": "a", "body": "b"}])
    for column, expected in (("title", ["a"]), ("body", ["b"]), ("title", ["a"])):
        again = FakeEmbedder()
        await run_job(source, embedder=again, **options(server, column=column))
        assert again.seen == expected
    database.execute("ALTER TABLE docs ADD body_dense vector(4), ADD body_vectord_fingerprint text")
    for column, prefix, expected in (("body", "body_", ["b"]), ("title", "", []), ("body", "body_", [])):
        again = FakeEmbedder()
        await run_job(source, embedder=again, **options(server, column=column, prefix=prefix))
        assert again.seen == expected


async def test_the_last_row_of_an_id_counts(tmp_path: Path, server: str, database: psycopg.Connection[Any]) -> None:
    """In each run, also if an earlier one is in another request."""
    rows = [{"id": 1, "text": "a"}, {"id": 1, "text": "b"}, *({"id": i, "text": "x"} for i in range(2, 400))]
    for last in ("b", "c"):
        source = write_input(tmp_path / "in.jsonl", [*rows, {"id": 1, "text": last}])
        for _ in range(3):
            await run_job(source, **options(server))
            assert database.execute("SELECT text FROM docs WHERE id = 1").fetchall() == [(last,)]


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
    ("column", "table", "message"),
    [
        ("id", "id text PRIMARY KEY, dense vector(4), vectord_fingerprint text", "has no column 'text'"),
        ("id", "id text, text text, dense vector(4), vectord_fingerprint text", "no unique or exclusion constraint"),
        ("id", "id text PRIMARY KEY, text text, dense vector(5), vectord_fingerprint text", r"dense .* is vector\(5\)"),
        *((name, None, f"the column '{name}' cannot be in a table") for name in ("", "xmin", "ü" * 32)),
    ],
    ids=["column", "unique", "dimensions", "no name", "a system column", "a long name"],
)
async def test_a_table_that_cannot_hold_the_rows_is_refused_before_the_first_text(
    tmp_path: Path, server: str, database: psycopg.Connection[Any], column: str, table: str | None, message: str
) -> None:
    """Also before the model is loaded. PostgreSQL would shorten a long name."""
    if table is not None:
        database.execute(f"CREATE EXTENSION vector; CREATE TABLE docs ({table})")
    embedder = FakeEmbedder(before=lambda texts: pytest.fail("the model was used"))
    source = write_input(tmp_path / "in.jsonl", [{"text": "a", column: "x"}])
    with pytest.raises(ConfigError, match=message):
        await run_job(source, embedder=embedder, **options(server))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": 1.5, "text": "a"}, "`id` is float, but bigint in the table"),
        ({"id": 3, "text": "a", "n": 1.5}, "`n` is float, but bigint in the table"),
        ({"id": 3, "text": "a\0b"}, "`text` contains the character NUL"),
        ({"id": None, "text": "a"}, "`id` is empty"),
        ({"id": 3, "text": "a", "more": 1}, "`more` is not in the first rows"),
        ({"id": 3, "text": "a", "vectord_fingerprint": "x"}, None),
    ],
    ids=["id", "number", "NUL", "no id", "column", "fingerprint"],
)
async def test_a_row_that_the_table_cannot_hold_ends_the_job_with_its_number(
    tmp_path: Path, server: str, database: psycopg.Connection[Any], row: dict[str, Any], message: str | None
) -> None:
    """Also with --on-error null and --restart. Nothing is rounded or overwritten."""
    rows = [{"id": i, "text": "x", "n": i} for i in range(5000)]
    source = write_input(tmp_path / "in.jsonl", [*rows, row])
    expected = f"^Row 5000, counted from 0: {message}" if message else "already has a column 'vectord_fingerprint'"
    with pytest.raises(BulkFailed, match=expected):
        await run_job(source, **options(server, on_error="null", restart=True))
    assert database.execute("SELECT n FROM docs WHERE id IN (1, 2)").fetchall() in ([(1,), (2,)], [])


async def test_columns_of_a_table_have_the_types_of_its_schema(
    tmp_path: Path, server: str, database: psycopg.Connection[Any]
) -> None:
    """Also if the first values are null. No id is too large. A repeated job embeds nothing."""
    moment = datetime(2026, 1, 2, 3, 4, 5)
    columns = {
        "id": pa.array([2**64 - 1, 1], pa.uint64()),
        "text": ["a", "b"],
        "late": pa.array([None, None], pa.int32()),
        "naive": pa.array([moment, None], pa.timestamp("us")),
        "aware": pa.array([moment.replace(tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "blob": pa.array([b"x", None], pa.large_binary()),
        "tags": pa.array([["t"], None], pa.list_(pa.string())),
    }
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    for stored in (0, 2):
        assert (await run_job(tmp_path / "in.parquet", **options(server))).resumed_from == stored
    (types,) = database.execute(
        "SELECT " + ", ".join(f"pg_typeof({name})::text" for name in columns) + " FROM docs WHERE id = 1"
    ).fetchall()
    assert types == (
        *("numeric", "text", "bigint", "timestamp without time zone", "timestamp with time zone", "bytea", "jsonb"),
    )
    assert database.execute("SELECT id, naive FROM docs ORDER BY id DESC LIMIT 1").fetchall() == [(2**64 - 1, moment)]


@pytest.mark.parametrize(
    ("error", "is_temporary"),
    [
        (psycopg.OperationalError("the server closed the connection"), True),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.TooManyConnections(), True),
        (psycopg.errors.DiskFull(), False),
        (psycopg.errors.ProgramLimitExceeded(), False),
        (psycopg.errors.CheckViolation(), False),
        (psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_that_stays_is_not_retried(error: psycopg.Error, is_temporary: bool) -> None:
    """Such as a full disk."""
    output = PostgresOutput.__new__(PostgresOutput)
    vars(output).update(_connection=None, _url="", _secret="", name="", _written=0)
    raising = MagicMock(side_effect=error)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RetryLater if is_temporary else BulkFailed):
        patch.setattr(psycopg, "connect", raising)
        output._execute("SELECT")


async def test_a_key_that_is_too_long_for_the_index_ends_the_job(
    tmp_path: Path, server: str, database: psycopg.Connection[Any]
) -> None:
    """At once: --patience-s is for lost connections."""
    noise = "".join(random.Random(0).choices("0123456789abcdef", k=9000))
    with pytest.raises(BulkFailed, match=r"^OUT: .*index row"):
        await run_job(write_input(tmp_path / "in.jsonl", [{"id": noise, "text": "a"}]), **options(server))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@127.0.0.1:1/db/docs",
        "postgresql://me:s3cret@127.0.0.1:port/db/docs",
        "postgresql://me:s3cret@127.0.0.1:1/db/docs?sslmode=wrong",
        "postgresql://me:s3cret@127.0.0.1/docs",
        "postgresql://me:pa/s3cret@127.0.0.1/docs",
        "postgresql://me:s3cret/ss@127.0.0.1/db/docs",
        "postgresql://me:s3cret%zz@127.0.0.1:1/db/docs",
    ],
)
def test_an_error_does_not_contain_the_password(tmp_path: Path, url: str) -> None:
    """Nor does the description of the job."""
    job = job_of(write_input(tmp_path / "in.csv", rows_of(2)), Path("docs"), out_url=url)
    with pytest.raises(ConfigError) as refused:
        Pipeline(find_source(job))
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


def test_an_output_that_was_closed_keeps_no_connection(tmp_path: Path, server: str) -> None:
    """The reading thread may ask for stored rows after the job has failed."""
    job = job_of(write_input(tmp_path / "in.csv", rows_of(2)), **options(server))
    output = PostgresOutput(job)
    rows = next(output.begin(find_source(job).read(REQUEST)))
    output.close()
    with pytest.raises(RetryLater, match="connection is closed"):
        output.new_rows(replace(rows, numbers=range(len(rows))))


async def test_pages_of_a_pdf_are_rows(server: str, tmp_path: Path, database: psycopg.Connection[Any]) -> None:
    """Also where the first rows are pictures; with --id-column, each page has its number in its id."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.png").write_bytes(media_of(image_of(20, 30)).data)
    (folder / "b.pdf").write_bytes(pdf_of())
    assert (await run_job(folder, **options(server, id_column="path"))).rows == 4
    assert database.execute("SELECT path, page FROM docs ORDER BY path").fetchall() == [
        ("a.png", 1),
        *[(f"b.pdf#{page}", page) for page in (1, 2, 3)],
    ]
    assert (await run_job(folder, **options(server, id_column="path"))).resumed_from == 4
