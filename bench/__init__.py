"""What measures vectord, and peers beside it, in one run. `python -m bench --help` says how.

Every timed thing lives in a process of its own (a server, or a child of child.py that answers one round at a time), so
that rounds of different contenders can be interleaved: whatever else the machine does then slows all of them alike.
"""
