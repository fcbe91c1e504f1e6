"""Texts to token sequences: prompts, pairs, truncation, chunks and windows, for the tokenizer of one model.

It knows no request's field names: an error has the index of its input, and the engine adds the field. Read sequence.py
first (the values that leave this package), then tokenizer.py.
"""
