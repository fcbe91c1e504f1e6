"""What several engines with the same models are like as one. Pure; called by several.py and reports.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vectord.schema import DeviceState, Gauges, ModelInfo, ModelList, Statistics

# A model is as well as it is where it is best: that is who will be asked.
BEST_FIRST = ("ready", "unloaded", "loading", "stalled", "failed")


def readiness_together(each: Iterable[Mapping[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for states in each:
        for name, state in states.items():
            found[name] = min(found.get(name, state), state, key=BEST_FIRST.index)
    return found


def lists_together(each: Sequence[ModelList]) -> ModelList:
    """each: at least one. Those that name no model have not been heard of."""
    each = [one for one in each if one.models] or each[:1]
    places = sum(one.limits.max_concurrent_requests for one in each)
    return ModelList(
        models=models_together([one.models for one in each]),
        limits=replace(each[0].limits, max_concurrent_requests=places),
        starting=all(one.starting for one in each),
    )


def models_together(each: Sequence[Sequence[ModelInfo]]) -> list[ModelInfo]:
    by_name: dict[str, list[ModelInfo]] = {}
    for models in each:
        for info in models:
            by_name.setdefault(info.name, []).append(info)
    return [_model_together(infos) for infos in by_name.values()]


def _model_together(infos: Sequence[ModelInfo]) -> ModelInfo:
    if len(infos) == 1:
        return infos[0]
    devices = dict.fromkeys(name for info in infos for name in info.device.split(","))
    return replace(
        infos[0],
        device=",".join(devices),
        devices=_devices_together(infos),
        state=min((info.state for info in infos), key=BEST_FIRST.index),
    )


def _devices_together(infos: Sequence[ModelInfo]) -> dict[str, DeviceState]:
    found: dict[str, DeviceState] = {}
    for place, info in enumerate(infos):
        for name, state in info.devices.items():
            found[name if name not in found else f"{name}/{place}"] = state
    return found


def gauges_together(each: Sequence[Gauges]) -> Gauges:
    """each: at least one."""
    queued, memory = Counter[str](), Counter[str]()
    for one in each:
        queued.update(one.queued_tokens)
        memory.update(one.memory_bytes)
    return Gauges(
        queued_tokens=dict(queued),  # type: ignore[arg-type] # Counter knows strings, these are lanes
        wait_s=max(one.wait_s for one in each),
        max_wait_s=each[0].max_wait_s,
        under_way=sum(one.under_way for one in each),
        places=sum(one.places for one in each),
        cached_texts=sum(one.cached_texts for one in each),
        cache_bytes=sum(one.cache_bytes for one in each),
        memory_bytes=memory,
        devices={name: memory for one in each for name, memory in one.devices.items()},
    )


def statistics_together(each: Sequence[Statistics]) -> Statistics:
    """each: at least one."""
    return Statistics(
        uptime_s=max(one.uptime_s for one in each),
        embed_requests=sum(one.embed_requests for one in each),
        embed_texts=sum(one.embed_texts for one in each),
        batches=sum(one.batches for one in each),
        refused_requests=sum(one.refused_requests for one in each),
        device=",".join(dict.fromkeys(one.device for one in each)),
    )
