"""`model_type: camembert`: RoBERTa under another name, down to its tensors' "roberta."."""

from __future__ import annotations

from vectord.compute.networks.roberta import classifier, load, masked_lm

__all__ = ["classifier", "load", "masked_lm"]
