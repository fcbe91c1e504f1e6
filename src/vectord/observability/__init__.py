"""Metrics, logs and traces of a server. Each reads the events of engine/events.py and the Exchange of each request.

Read metrics.py first; instruments.py has what a product's metrics derive from.
"""
