"""text-embeddings-inference (TEI): its own routes and its OpenAI routes, for every kind of model.

routes.py reads bodies and writes answers, errors.py renders errors, metrics.py has the te_* families. TEI's gRPC
service is server/grpc; /health, /ping, /metrics and /docs are pages of the server. Read routes.py first.
"""

from vectord.products.common.dialect import Dialect
from vectord.products.tei.errors import render_error
from vectord.products.tei.metrics import TeiMetrics
from vectord.products.tei.routes import ROUTES

DIALECT = Dialect(
    name="tei",
    title="text-embeddings-inference",
    rank=2,
    routes=tuple(ROUTES),
    render_error=render_error,
    health=lambda served, ready: {} if ready else {"error": "unhealthy", "error_type": "Unhealthy"},
    ready_lines=lambda models: ["Ready"],
    metrics=lambda settings: TeiMetrics(),
)
