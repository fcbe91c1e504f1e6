"""The engine: canonical requests (schema.py) in, results out. Knows no HTTP and no product.

operations/ does each kind of request, queue/ decides what runs next and runs it, cache/ keeps answers, models/ loads
models; embedder.py is the engine as a library. Imports compute, text, checkpoints and config. The server uses client.py
and events.py only. Read engine.py first.
"""
