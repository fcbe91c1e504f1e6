"""What the engine does with a request, one file for each operation: embed, rerank, classify, documents, tokenize.

An operation checks its request, acquires a loaded model, reads the texts (text/), runs them (queue/) and makes the
result. Read task.py first, then embed.py.
"""
