"""The forward pass: packed token ids in, vectors and scores out.

backends/ load a model onto a device, and networks/ define the architectures over the ops of ops/. Read
backends/base.py first, then networks/network.py and ops/base.py.
"""
