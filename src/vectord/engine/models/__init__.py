"""Config -> the models to serve: their files, their facts, their names, and how each will be loaded.

compose.py calls `open_models` and `open_composites` before anything listens, so that what is wrong with a model's name
stops the start. The engine calls each `load` later, in a thread behind the open port.

    wanted.py ─▶ facts.py ─▶ names.py, backend.py ─▶ opening.py: a ModelSource each
"""

from vectord.engine.models.composites import open_composites, read_composites
from vectord.engine.models.opening import open_models

__all__ = ["open_composites", "open_models", "read_composites"]
