"""Code that several products share: the interface to the server, and readers and renderers of common formats.

It may import schema.py, errors.py and msgspec, numpy and orjson. Read dialect.py
first: it defines routes, calls and responses.
"""
