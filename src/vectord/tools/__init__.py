"""Tools for servers: `vectord bench` and `vectord doctor`. Imports compose and everything below; only cli imports it.

Read probe.py first: it sends requests to a server of any product. load.py is the load generator. bench.py chooses the
requests of a benchmark, and doctor/ examines this machine, tests a server and compares two servers.
"""
