"""The model of throughput on more cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench.http_load import Round
from bench.memory import last_level_cache_bytes
from bench.scaling import Scaling, server_rows
from bench.scaling_model import BGE_M3, MINILM, Hardware, Parts, ServerModel, serial_share

GB = 1e9
PARTS = Parts(loop_s=0.001, engine_s=0.0, compute_s=0.003, client_s=0.001)
HARDWARE = Hardware(serial_share=0.0, core_bytes_per_s=10 * GB, all_bytes_per_s=15 * GB, cache_bytes=2**25)
EMPTY = ServerModel(parts=PARTS, hardware=HARDWARE, network=None, tokens=10.0, requests=32)
SERVER = replace(EMPTY, network=MINILM, tokens=64.0)


def test_the_scarcest_part_limits_the_rate() -> None:
    """All cores, then the event loops, then the engine process."""
    assert EMPTY.limits(2) == {"cores": pytest.approx(500), "event loop": pytest.approx(1000)}
    assert EMPTY.limits(2, with_client=True)["cores"] == pytest.approx(400)
    apart = replace(EMPTY, parts=replace(PARTS, engine_s=0.0005))
    assert min(apart.limits(64, 1).values()) == pytest.approx(1000)
    assert min(apart.limits(64, 2).values()) == pytest.approx(2000)
    assert min(apart.limits(64, 8).values()) == pytest.approx(2000)


def test_threads_of_a_stream_lose_a_measured_share() -> None:
    """A measured efficiency of 2 threads is reproduced, and 4 threads lose three times as much time by Amdahl's law."""
    hardware = replace(HARDWARE, serial_share=serial_share(2, 0.8))
    assert [hardware.efficiency(threads) for threads in (1, 2, 4)] == pytest.approx([1, 0.8, 1 / 1.75])
    assert serial_share(2, 1.1) == serial_share(1, 0.9) == 0


def test_only_streams_of_several_threads_are_slower() -> None:
    """The first four cores have a stream each; eight cores have four streams of two threads."""
    slower = replace(SERVER, hardware=replace(HARDWARE, serial_share=0.25))
    assert slower.limits(4)["cores"] == SERVER.limits(4)["cores"] == pytest.approx(1000)
    assert slower.limits(8)["cores"] == pytest.approx(8 / (0.001 + 0.003 * 1.25))


def test_a_large_model_has_few_streams() -> None:
    assert [MINILM.streams(cores) for cores in (1, 2, 4, 8, 16, 32, 64)] == [1, 2, 4, 4, 4, 8, 16]
    assert [BGE_M3.streams(cores) for cores in (1, 2, 4, 8, 16, 32, 64)] == [1, 1, 1, 2, 4, 8, 16]


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("int8", 1)])
def test_a_batch_reads_the_weights_once(dtype: str, size: int) -> None:
    """In the computing format, if the rows of a layer fit into the cache."""
    network = replace(BGE_M3, dtype=dtype)
    assert network.weights == pytest.approx(302e6, rel=0.01)
    assert network.bytes_per_token(1, 1000, 2**30) == pytest.approx(network.weights * size / 1000)


def test_rows_beyond_the_cache_go_to_memory_and_back() -> None:
    """Each stream has its share of the cache: two streams fit, four do not."""
    row_bytes = (6 * 384 + 1536) * 2
    weights = MINILM.weights * 2 / 1000
    assert MINILM.bytes_per_token(2, 1000, 2000 * row_bytes) == pytest.approx(weights)
    assert MINILM.bytes_per_token(4, 1000, 2000 * row_bytes) == pytest.approx(weights + 2 * 6 * row_bytes / 2)


def test_few_requests_in_progress_make_small_batches() -> None:
    """32 requests of 64 tokens are 2,048 tokens, of which one stream takes 1,024 at once, and each of four 512."""
    assert SERVER.token_bytes(1) == pytest.approx(MINILM.weights * 2 / 1024)
    assert SERVER.token_bytes(4) == pytest.approx(MINILM.weights * 2 / 512)
    assert EMPTY.token_bytes(4) == 0


def test_memory_limits_the_rate() -> None:
    """The bandwidth is divided by the bytes of a request. Cores that the machine does not have add none."""
    for cores, bandwidth in ((1, 10 * GB), (2, 15 * GB), (64, 15 * GB)):
        assert SERVER.limits(cores)["memory"] == pytest.approx(bandwidth / (64 * SERVER.token_bytes(cores)))
    assert "memory" not in EMPTY.limits(2)


def test_another_network_takes_time_by_its_weights() -> None:
    """The event loop's time stays the same."""
    large = SERVER.with_network(BGE_M3)
    assert large.parts == replace(PARTS, compute_s=pytest.approx(0.003 * BGE_M3.weights / MINILM.weights))
    assert large.streams(2) == 1


def test_each_row_has_its_share_of_the_model() -> None:
    """And rows after the limit of a loop are left out."""
    measured = Round(requests=400, texts=400, tokens=4000, elapsed_s=1.0, latencies_ms=[1.0], client_us=1000.0)
    rounds = [(1, measured, PARTS), (2, measured, replace(PARTS, loop_s=0.002))]
    found = list(server_rows(Scaling(what="m", texts=1, front_ends=1, model=EMPTY, measured=rounds)))
    assert [row.what.strip() for row in found[1:]] == ["1 core", "2 cores", "4 cores, computed"]
    assert found[1].value == "1.60 of the model's 250.0 (cores); loop 1000, other threads 3000 us"
    assert found[2].value == "1.00 of the model's 400.0 (cores); loop 2000, other threads 3000 us"
    assert found[3].requests_per_s == pytest.approx(1000)


def test_a_computed_row_has_the_traffic_without_the_limit_of_memory() -> None:
    """So that it can be compared with the bandwidth of another machine."""
    slow = replace(SERVER, hardware=replace(HARDWARE, all_bytes_per_s=GB))
    row = list(server_rows(Scaling(what="m", texts=1, front_ends=1, model=slow, measured=())))[1]
    assert row.value == "limit: memory; 4 x 1 threads; 41 kB a token, 2.7 of 1.0 GB/s"
    assert row.requests_per_s == pytest.approx(GB / (64 * slow.token_bytes(4)))


def test_the_last_level_caches_are_summed(tmp_path: Path) -> None:
    """A cache that two cores share counts once."""
    for core, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3")):
        for index, (level, size) in enumerate([(1, "32K"), (3, "16M")]):
            folder = tmp_path / f"cpu{core}/cache/index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", str(level)), ("size", size), ("shared_cpu_list", shared)):
                (folder / name).write_text(f"{text}\n")
    assert last_level_cache_bytes([0, 1, 2], tmp_path) == 32 * 2**20
    assert last_level_cache_bytes([7], tmp_path) == 0
