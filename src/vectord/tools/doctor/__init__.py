"""What this machine offers, how the models fare on it, and what would help: `vectord doctor`.

`machine.py` and `installation.py` gather facts, `self_test.py` runs the models, `advice.py` draws conclusions, and
`against.py` compares with another server.
"""
