"""Facts, tests and comparisons for `vectord doctor`.

facts.py reads facts, self_test.py runs the models, references.py has the right vectors, advice.py draws conclusions,
server.py tests a running server, and against.py compares two servers.
"""
