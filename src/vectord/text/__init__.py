"""Texts to token sequences: prompts, pairs, truncation, chunks and windows, for the tokenizer of one model.

May import checkpoints/ (the model's spec), schema.py and errors.py; the engine imports this package. It knows no
request's field names: an error has the index of its input, and the operation adds the field. Read sequence.py first
(the values that leave this package), then tokenizer.py.
"""
