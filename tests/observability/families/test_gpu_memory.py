"""Memory of GPUs under the names of two products, one of which has a name twice."""

from __future__ import annotations

from vectord.products.semantic_explorer.metrics import SemanticExplorerFamilies
from vectord.products.smart_embedder.metrics import SmartEmbedderFamilies
from vectord.schema import DeviceMemory

DEVICES = {
    "cuda:0": DeviceMemory(allocated=1, reserved=20, free=300, total=4000),
    "cuda:1": DeviceMemory(allocated=2, reserved=30, free=500, total=7000),
}


def test_smart_embedders_gauges_are_of_all_gpus_under_both_names() -> None:
    """Those of its first version are copies, which its older dashboards read."""
    families = SmartEmbedderFamilies("0", {})
    families.look((), DEVICES)
    gauges = (families.allocated, families.reserved, families.free, families.total)
    old = (families.old_allocated, families.old_reserved)
    assert {gauge.name: gauge.values[()] for gauge in (*gauges, *old)} == {
        "gpu_memory_allocated_bytes": 3,
        "gpu_memory_reserved_bytes": 50,
        "gpu_memory_free_bytes": 800,
        "gpu_memory_total_bytes": 11_000,
        "embedding_gpu_memory_allocated_bytes": 3,
        "embedding_gpu_memory_reserved_bytes": 50,
    }


def test_semantic_explorers_gauge_is_what_is_not_free() -> None:
    """Whoever holds it; and a GPU's busy share is shown only where there is one."""
    families = SemanticExplorerFamilies()
    families.look({}, DEVICES, busy_share=0.25)
    assert (families.gpu_used.values[()], families.gpu_percent.values[()]) == (10_200, 25)
    families.look({}, {}, busy_share=0.25)
    assert (families.gpu_used.values[()], families.gpu_percent.values[()]) == (0, 0)
