"""Code that several products share: the interface to the server, and readers and renderers of common formats.

It may import schema.py, errors.py and msgspec, numpy, orjson and (in vectors.py, on first use) pyarrow. Read dialect.py
first: it defines routes, calls and responses.
"""
