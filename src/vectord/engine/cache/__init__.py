"""Answers of texts seen before: in this process's memory, and in a store that replicas share.

lookup.py keeps arrays, shared.py reads and writes a store (redis_store.py) with the bytes of answer_codec.py. Read
lookup.py first.
"""
