"""The models of an engine: from the configuration to loaded backends, and which of them are in memory.

compose.py calls `open_models` and `open_composites` before a port opens, so that a wrong name stops the start. Loading
comes later, in a thread. Imports compute, text, checkpoints, config and the engine's queue.

    opening.py   requested.py ─▶ backend.py: one ModelSource per model, not yet loaded. Read this first.
    registry.py  the served models by name and their state
    lifecycle.py which are loaded, and when;  loading.py: load one and test it
"""

from vectord.engine.models.opening import open_models
from vectord.engine.models.requested import open_composites, read_composites

__all__ = ["open_composites", "open_models", "read_composites"]
