"""Tests of a running server, for `vectord check`. subject.py describes the server, checks.py has the tests."""
