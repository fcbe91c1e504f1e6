"""Decides whether a request may run: API keys, rate limits, and the client that it counts for.

Contains no transport: HTTP and gRPC both come here through server/pipeline.py. May import `config`, `errors`, `schema`
and the types of `products/common`. Start with gate.py.
"""
