"""Bounds on what a client can cost: bytes, values, time, connections and unread responses.

May import `errors`, the events of `observability` and the HTTP libraries. Start with body.py; connection_limits.py
bounds connections for ../port.py, http_protocol.py what they send before there is a request, write_backpressure.py
responses.
"""
