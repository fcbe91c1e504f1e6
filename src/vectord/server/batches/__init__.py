"""Stored files and batches of requests, with `--batch-dir`. Read runner.py first.

May import the engine's client, admission, http/routing and products/common. store.py owns the folder, runner.py answers
the routes and runs the batches: each line of an input file takes the path of an HTTP request to its endpoint, in the
bulk lane. All state lives on the event loop of one process; files are read and written in threads.
"""
