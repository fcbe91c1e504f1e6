"""From a model's name to its files, its facts and its tensors.

`hub.resolve` turns a name into a folder, `reader.read_spec` reads the folder into a `ModelSpec`, and
`checkpoint.open_checkpoint` maps the tensors. Everything here treats the folder as untrusted input: it is read within
limits, and nothing in it is executed or imported. A file that is missing, broken or not supported raises
ModelUnavailable, which names it; a setting that does not fit the model raises ConfigError. May import config, schema
and errors. Read spec.py first, then reader.py.
"""
