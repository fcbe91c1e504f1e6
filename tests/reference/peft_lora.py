"""Last hidden states of a model with an adapter of peft, for several forms of its adapter_config.json.

    python peft_lora.py MODEL_FOLDER INPUTS.json ARRAYS.npz

Inputs: adapter (its folder), configs (the forms), ids (of one text).
Arrays: str(i) of each config, (L, H) float64; missing where peft raises an error.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import warnings
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModel


def main(model_folder: str, inputs_file: str, arrays_file: str) -> None:
    inputs = json.loads(Path(inputs_file).read_text())
    ids = torch.tensor([inputs["ids"]])
    arrays = {}
    with tempfile.TemporaryDirectory() as scratch:
        adapter = shutil.copytree(inputs["adapter"], Path(scratch) / "adapter")
        base = AutoModel.from_pretrained(model_folder).double().eval()
        for i, config in enumerate(inputs["configs"]):
            (adapter / "adapter_config.json").write_text(json.dumps(config))
            torch.manual_seed(i)
            try:
                with torch.no_grad(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model = PeftModel.from_pretrained(deepcopy(base), adapter)
                    arrays[str(i)] = model(input_ids=ids).last_hidden_state[0].numpy()
            except Exception as error:  # of any class, from any of the libraries
                print(i, type(error).__name__, error, file=sys.stderr)
    np.savez(arrays_file, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
