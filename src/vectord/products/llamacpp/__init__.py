"""llama.cpp's server, where it embeds, reranks and tokenizes: its own routes and its OpenAI route.

routes.py reads bodies and writes answers, norms.py scales vectors, errors.py renders errors. Read routes.py first.
"""

from vectord.products.common.dialect import Dialect
from vectord.products.llamacpp.errors import render_error
from vectord.products.llamacpp.routes import ROUTES, original_health

DIALECT = Dialect(
    name="llamacpp",
    title="llama.cpp",
    routes=tuple(ROUTES),
    render_error=render_error,
    original_health=original_health,
)
