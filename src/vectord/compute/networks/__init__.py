"""Each Architecture reads the models of some model_types of config.json; network.py lists them. Read network.py first.

Functions that read a config or a checkpoint raise ModelUnavailable for what the network does not support.
"""
