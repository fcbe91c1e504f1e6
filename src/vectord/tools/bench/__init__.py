"""Load on a server by its URL, and what it showed: `vectord bench`, and the speeds of `vectord doctor --against`.

`scenarios.py` says what is asked, `load.py` asks it over raw sockets, `figures.py` counts.
"""
