"""Tools for servers: `vectord check`, `bench`, `doctor` and `verify`. Imports compose and everything below; only cli
imports it.

Read probe.py first: it sends requests to a server of any product. load.py is the load generator. check.py tests a
server, bench.py chooses the requests of a benchmark, doctor/ examines this machine and compares two servers, and
verify.py compares a model with references.
"""
