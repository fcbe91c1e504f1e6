"""A model of the server's throughput on n cores, from parts that are measured on one. Pure functions.

A server answers at most so many requests a second:

    cores            n / (event loop + engine process + other threads / e(t))
    event loop       1 / (event loop), and with f front-ends f / (event loop)
    engine process   1 / (engine process), with front-ends only
    memory           bandwidth / bytes of a request

The first three divide by processor seconds for a request. The backend runs s streams (choose_streams) of t = n / s
threads. e(t) = 1 / (1 + c (t - 1)) is the rate of a stream with t threads, relative to t streams of one thread, by
Amdahl's law; c is measured. For a token, a forward pass over batches of B tokens moves

    (weights + 2 * layers * max(0, B * row - cache / s)) / B

bytes: each stream reads the weights of the linear layers from memory once a batch, and of the rows that a layer writes,
the part that exceeds the stream's share of the last-level cache is written to memory and read again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vectord.compute.backends.openvino import MAX_BATCH_TOKENS, choose_streams, choose_wide_streams

FORMAT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "int8-weights": 1.0, "int4-weights": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Processor seconds for a request, by place. engine_s: the loop of the engine process; 0 without front-ends."""

    loop_s: float
    engine_s: float
    compute_s: float
    client_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The measured properties of a machine. The cache is the last level, of all its cores."""

    serial_share: float  # c above
    core_bytes_per_s: float  # memory bandwidth of one core
    all_bytes_per_s: float  # of all cores
    cache_bytes: int

    def efficiency(self, threads: float) -> float:
        """e(t) above."""
        return 1 / (1 + self.serial_share * (threads - 1))

    def bytes_per_s(self, cores: int) -> float:
        """The bandwidth of some cores. More cores than the machine has are given the bandwidth of all that it has."""
        return min(cores * self.core_bytes_per_s, self.all_bytes_per_s)


def serial_share(threads: int, efficiency: float) -> float:
    """c above, from the measured rate of one stream of `threads` threads relative to `threads` streams of one."""
    return max(0.0, (1 / efficiency - 1) / (threads - 1)) if threads > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """An encoder and its computing format. one_plan: the backend chooses streams as for large models."""

    layers: int
    width: int
    between: int  # width of the feed-forward layer
    one_plan: bool
    dtype: str

    @property
    def weights(self) -> int:
        """Of the linear layers: four products of attention and two of the feed-forward layer."""
        return self.layers * (4 * self.width**2 + 2 * self.width * self.between)

    def streams(self, cores: int) -> int:
        return choose_wide_streams(cores) if self.one_plan else choose_streams(cores)

    def bytes_per_token(self, streams: int, batch_tokens: float, cache_bytes: int) -> float:
        """The memory traffic of a token. A layer writes queries, keys, values, the weighted values, two sums with its
        input, and the row between the feed-forward products."""
        row_bytes = (6 * self.width + self.between) * (4 if self.dtype == "float32" else 2)
        moved = 2 * self.layers * max(0.0, batch_tokens * row_bytes - cache_bytes / streams)
        return (self.weights * FORMAT_BYTES[self.dtype] + moved) / batch_tokens


MINILM = Network(layers=6, width=384, between=1536, one_plan=False, dtype="bfloat16")
BGE_M3 = Network(layers=24, width=1024, between=4096, one_plan=True, dtype="bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerModel:
    """One server under a constant number of requests in progress. network: None for a backend without computation."""

    parts: Parts
    hardware: Hardware
    network: Network | None
    tokens: float  # of a request
    requests: int  # in progress

    def limits(self, cores: int, front_ends: int = 1, *, with_client: bool = False) -> dict[str, float]:
        """Requests a second by limit; the lowest is the rate. with_client: the load generator uses the same cores."""
        parts, hardware = self.parts, self.hardware
        compute_s = parts.compute_s / hardware.efficiency(cores / self.streams(cores))
        busy_s = parts.loop_s + parts.engine_s + compute_s + parts.client_s * with_client
        limits = {"cores": cores / busy_s, "event loop": front_ends / parts.loop_s}
        if parts.engine_s:
            limits["engine process"] = 1 / parts.engine_s
        if self.network is not None:
            limits["memory"] = hardware.bytes_per_s(cores) / (self.tokens * self.token_bytes(cores))
        return limits

    def streams(self, cores: int) -> int:
        return cores if self.network is None else self.network.streams(cores)

    def token_bytes(self, cores: int) -> float:
        """Memory traffic of a token. The tokens of the requests in progress are divided among the streams, so many
        streams have small batches."""
        if self.network is None:
            return 0.0
        streams = self.streams(cores)
        batch_tokens = min(MAX_BATCH_TOKENS, self.requests * self.tokens / streams)
        return self.network.bytes_per_token(streams, batch_tokens, self.hardware.cache_bytes)

    def with_network(self, network: Network) -> ServerModel:
        """The same server with another network, whose other threads take time in proportion to its weights."""
        assert self.network is not None
        compute_s = self.parts.compute_s * network.weights / self.network.weights
        return replace(self, network=network, parts=replace(self.parts, compute_s=compute_s))
