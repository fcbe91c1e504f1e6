"""vectord's own API: the results of every client are compared with its results for the same texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class OwnApi:
    """Without `model`, the first suitable model answers, as for a client that names none."""

    url: str

    def embed(self, inputs: Sequence[Any], **options: Any) -> npt.NDArray[np.float32]:
        """Dense vectors of texts or token ids, (N, D). options: further keys of the body, such as `model`."""
        data = self._post("embed", inputs=list(inputs), **options)["data"]
        return np.array([item["dense"] for item in data], np.float32)

    def kinds(self, inputs: Sequence[str], outputs: Sequence[str], **options: Any) -> list[dict[str, Any]]:
        """The JSON of each text for these `outputs`: "dense", "sparse", "colbert"."""
        data: list[dict[str, Any]] = self._post("embed", inputs=list(inputs), outputs=list(outputs), **options)["data"]
        return data

    def chunks(self, document: str, max_tokens: int) -> npt.NDArray[np.float32]:
        """The vectors of its chunks, embedded in the context of the whole text, (chunks, D)."""
        asked = {"documents": [document], "chunk": {"max_tokens": max_tokens}, "late": True}
        (item,) = self._post("documents", **asked)["data"]
        return np.array([chunk["vector"] for chunk in item["chunks"]], np.float32)

    def rank(self, query: str, passages: Sequence[str], **options: Any) -> list[tuple[int, float]]:
        """(index, score) of each passage, best first."""
        asked = {"query": query, "passages": list(passages), "scores": "probability", **options}
        return [(one["index"], one["score"]) for one in self._post("rerank", **asked)["results"]]

    def labels(self, inputs: Sequence[str], **options: Any) -> list[dict[str, float]]:
        """The score of each label of each text, best first."""
        data = self._post("classify", inputs=list(inputs), **options)["data"]
        return [{one["label"]: one["score"] for one in item["labels"]} for item in data]

    def token_ids(self, text: str) -> list[int]:
        """Including special tokens."""
        (ids,) = self._tokenize([text])
        return ids

    def count_tokens(self, inputs: Sequence[str]) -> int:
        """Of all texts together, including special tokens: the usage that a client is billed for."""
        return sum(map(len, self._tokenize(inputs)))

    def _tokenize(self, inputs: Sequence[str]) -> list[list[int]]:
        return [
            [token["id"] for token in item["tokens"]] for item in self._post("tokenize", inputs=list(inputs))["data"]
        ]

    def _post(self, verb: str, **body: Any) -> Any:
        answer = httpx.post(f"{self.url}/vectord/{verb}", json=body, timeout=60)
        answer.raise_for_status()
        return answer.json()
