"""Bounds on what a client can cost: bytes, values, time, connections and unread responses.

May import `errors` and the HTTP libraries. Start with body.py; http_protocol.py bounds connections before there is a
request, write_backpressure.py bounds responses.
"""
