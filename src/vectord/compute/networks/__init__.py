"""One module is one architecture of config.json's model_type: this folder is the registry. Read network.py first."""
