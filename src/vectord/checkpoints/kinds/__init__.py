"""What each kind of model adds to its ModelSpec. reader.py decides the kind and calls one function of each module."""
