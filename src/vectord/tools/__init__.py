"""Tools for servers: `vectord bench` and `vectord doctor`. Imports compose and everything below; only cli imports it.

Read probe.py first: it sends requests to a server of any product. bench.py has the scenarios and the load generator;
doctor/ examines this machine, tests a server and compares two servers.
"""
