"""Settings of every test process and of the servers that it starts."""

import os

# Idle threads of OpenMP, and any second thread of OpenBLAS, would keep the cores from the other test process.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tests.programs import add_to_path

add_to_path()
