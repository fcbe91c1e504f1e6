"""Attacks on a running server. `python -m tests.attack URL` runs all of them and prints the results; see runner.py.

One module per family. An attack is a coroutine function whose docstring says what it tries; it takes the Target and the
Attempt, in which it counts and reports. test_attack.py runs each one briefly against a real server.
"""
