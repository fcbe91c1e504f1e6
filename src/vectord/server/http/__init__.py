"""HTTP: the ASGI app, its routing, and the process that serves it.

May import what `server` may, plus starlette and httptools. Start with handler.py, which takes one request from its
headers to its response; app.py assembles the app, run.py serves it, hardening/ bounds what clients can cost.
"""
