"""Heads turn last hidden states into the outputs of a model. Read any_body.py first."""
