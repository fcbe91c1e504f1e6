"""`model_type: new`: the name of GTE v1.5 and multilingual GTE in their own configs."""

from __future__ import annotations

from vectord.compute.networks.gte import classifier, load, masked_lm

__all__ = ["classifier", "load", "masked_lm"]
