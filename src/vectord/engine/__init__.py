"""The engine: canonical requests (schema.py) in, results out. Knows no HTTP and no product.

operations/ does each kind of request, queue/ schedules and runs texts, cache/ keeps answers, models/ loads models. The
server uses client.py and events.py only. Read engine.py first.
"""
