"""Smart Embedder: the three vectors of BGE-M3 and a reranker, with a warning for each truncated text.

routes.py reads bodies, writes answers and renders errors, health.py adds to the server's /health and log, metrics.py
has its families. Read routes.py first.
"""

from vectord.products.common.dialect import Dialect, Rate
from vectord.products.smart_embedder.health import health, ready_lines
from vectord.products.smart_embedder.metrics import SmartEmbedderMetrics
from vectord.products.smart_embedder.routes import ROUTES, render_error

DIALECT = Dialect(
    name="smart_embedder",
    title="Smart Embedder",
    routes=tuple(ROUTES),
    render_error=render_error,
    rate=Rate(3600, period_s=60, burst=120),
    health=health,
    ready_lines=ready_lines,
    metrics=SmartEmbedderMetrics,
)
