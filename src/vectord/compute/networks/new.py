"""`model_type: new`: what GTE v1.5 and multilingual GTE call themselves."""

from __future__ import annotations

from vectord.compute.networks.gte import classifier, load, masked_lm

__all__ = ["classifier", "load", "masked_lm"]
