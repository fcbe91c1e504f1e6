"""Facts, advice and comparisons for `vectord doctor`.

machine.py and installation.py read facts, self_test.py runs the models, advice.py draws conclusions, and against.py
compares two servers.
"""
