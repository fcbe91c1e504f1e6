"""The dashboard deploy/grafana/vectord.json is valid and complete. test_prometheus.py checks its expressions."""

from __future__ import annotations

from tests.deploy.asked import DASHBOARD, panels


def test_grafana_can_read_the_dashboard() -> None:
    """It uses the classic model, with a uid, unique panel ids, and the three variables in use."""
    assert DASHBOARD["uid"] == "vectord"
    assert DASHBOARD["schemaVersion"] == 42
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "job", "instance"]
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert len(set(titles)) == len(titles)
    for panel in panels():
        assert panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert [target["datasource"] for target in panel["targets"]] == [panel["datasource"]] * len(panel["targets"])
        assert all('job="$job"' in target["expr"] for target in panel["targets"])


def test_every_panel_of_smart_embedder_exists() -> None:
    """They have the names of its README."""
    wanted = {
        "Embedding Request Rate",
        "Latency P50/P95/P99",
        "Queue Size",
        "GPU Memory",
        "Rerank Request Rate",
        "Batch Size Distribution",
    }
    assert wanted <= {panel["title"] for panel in panels()}
