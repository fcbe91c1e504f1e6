"""Settings of every test process and of the servers that it starts."""

import os

# OpenMP's idle threads would keep the cores from the other test process.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
