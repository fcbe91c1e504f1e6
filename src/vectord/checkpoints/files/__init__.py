"""One module for each file format of a model's folder. Files are untrusted: each reader states what it refuses."""
