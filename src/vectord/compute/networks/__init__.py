"""A module is one architecture, named after config.json's model_type; network.py has aliases. Read network.py first.

Everything that reads a config or a checkpoint raises ModelUnavailable for what it does not support.
"""
