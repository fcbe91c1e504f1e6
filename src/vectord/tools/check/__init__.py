"""Tests of a server that runs, by its URL: `vectord check`.

`suite.py` runs them one after another; `embedding.py`, `reranking.py`, `manners.py` and `examples.py` have them.
"""
