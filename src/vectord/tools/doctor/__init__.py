"""Facts, advice and comparisons for `vectord doctor`.

facts.py reads facts, self_test.py runs the models, advice.py draws conclusions, and against.py compares two servers.
"""
