"""The forward pass: packed token ids in, vectors and scores out.

backends/ load a model onto a device, networks/ define the architectures over the ops of ops/, and calibration/ fits
int8. May import text, checkpoints, config, schema and errors; the engine uses backends through backends/base.py only.
Read backends/base.py first, then networks/network.py and ops/base.py.
"""
