"""A tiny random T5Gemma 2 in transformers' files, and the steps of KaLM-Reranker's own script.

torch and transformers are imported only by the functions that use them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.models import randomize

NAME = "KaLM-Embedding/KaLM-Reranker-V1-Nano"
INSTRUCTION = "Given a query, retrieve documents that answer the query."
SPECIALS = ("<bos>", "<start_of_turn>", "<end_of_turn>")
TEXT_CONFIG: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "query_pre_attn_scalar": 24,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}
VISION_CONFIG = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def write_t5gemma2(folder: Path, *, window: int = 8, **decoder: Any) -> Path:
    """window: of the encoder, an even one sees more tokens after than before; decoder: entries of its config."""
    import transformers
    from tests.reference.reference_models import train_qwen_bpe

    tokenizer = train_qwen_bpe()
    tokenizer.add_tokens([*SPECIALS], special_tokens=True)
    tokenizer.add_tokens(["yes", "no"])
    own = {**TEXT_CONFIG, "vocab_size": len(tokenizer), "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
    config = transformers.T5Gemma2Config(
        encoder={"text_config": {**own, "sliding_window": window}, "vision_config": VISION_CONFIG},
        decoder={**own, "sliding_window": 512, **decoder},
        image_token_index=1,
        eoi_token_index=2,
    )
    randomize(transformers.T5Gemma2ForConditionalGeneration(config), size=0.2).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Reference:
    """The steps of the script, in float64."""

    def __init__(self, folder: Path) -> None:
        import transformers

        self.model = transformers.T5Gemma2ForConditionalGeneration.from_pretrained(folder).double().eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def ids(self, text: str) -> Any:
        return self.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids

    def rows(self, passage: str) -> np.ndarray:
        """(R, H) the means of four of the encoder's states."""
        import torch

        ids = self.ids(f"<Document>: {passage}")[:, :1024]
        with torch.no_grad():
            states = self.model.model.encoder(input_ids=ids).last_hidden_state[0]
        rows: np.ndarray = torch.stack([part.mean(0) for part in states.split(4)]).numpy()
        return rows

    def prompt(self, query: str, instruction: str = INSTRUCTION) -> str:
        question = (
            "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that "
            'the answer can only be "yes" or "no".'
        )
        user = f"user\n{question}\n\n<Instruct>: {instruction}\n<Query>: {query}"
        return f"<bos><start_of_turn>{user}<end_of_turn>\n<start_of_turn>model\n\n\n\n"

    def score(self, query: str, passage: str, instruction: str = INSTRUCTION) -> float:
        """The share of "yes" among the two answers."""
        import torch
        from transformers.modeling_outputs import BaseModelOutput

        rows = torch.from_numpy(self.rows(passage))[None]
        with torch.no_grad():
            logits = self.model(
                encoder_outputs=BaseModelOutput(last_hidden_state=rows),
                attention_mask=torch.ones(rows.shape[:2], dtype=torch.long),
                decoder_input_ids=self.ids(self.prompt(query, instruction)),
            ).logits[0, -1]
        yes, no = (self.tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))
        return float(torch.softmax(logits[[yes, no]], 0)[0])
