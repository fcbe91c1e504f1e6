"""The engine of another process on this machine, over a Unix socket. Read client.py and server.py first.

    front-end: client ── link ──▶ frames ══ socket ══ frames ──▶ server: the engine, the rate limits, the metrics

codec.py declares and encodes what they send.
"""
