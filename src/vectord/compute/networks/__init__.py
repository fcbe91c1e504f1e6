"""A module is one architecture, named after config.json's model_type; network.py has aliases. Read network.py first.

Functions that read a config or a checkpoint raise ModelUnavailable for what the network does not support.
"""
