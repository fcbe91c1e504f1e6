"""vectord's own API, under /vectord/: every field of schema.py, and everything that a result contains.

Each route stands with the types of its body and its response; fields.py has what they share. Fields have the names of
schema.py; null is the same as absent, and an unknown field is refused. Runs on the event loop; large bodies are parsed
in a thread. Read vectors.py first.
"""

from vectord.products.common.dialect import Dialect
from vectord.products.vectord import models, scores, tokens, vectors
from vectord.products.vectord.fields import render_error

DIALECT = Dialect(
    name="vectord",
    title="vectord",
    routes=(*vectors.ROUTES, *scores.ROUTES, *tokens.ROUTES, *models.ROUTES),
    render_error=render_error,
    prefix="/vectord/",
    rank=0,
)
