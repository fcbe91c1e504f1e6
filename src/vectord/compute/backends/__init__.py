"""One module (or folder) is one backend, and `--backend NAME` names it. base.py is the interface; read it first."""
