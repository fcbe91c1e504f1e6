"""Metrics, logs and traces of a server. Each reads the events of engine/events.py and the Exchange of each request.

Imports the engine's events, config, schema and errors. Read metrics.py first; instruments.py has what a product's
metrics derive from.
"""
