"""A model of texts and images as the engine runs it: the network of images first, its rows in the texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from msgspec.structs import replace
from tests.compute.networks.case import load
from tests.models import packed_texts
from tests.towers import media_of

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.backends.base import TokenBatch
from vectord.compute.networks.network import Network
from vectord.compute.ops.numpy import NumpyOps, pack
from vectord.schema import Float32, TextOptions
from vectord.text.sequence import ReadRequest, Texts
from vectord.text.tokenizer import TextEncoder

Item = str | Any  # a text or a Pillow image, or several of them


def read(spec: ModelSpec, inputs: Sequence[Item | Sequence[Item]], *, query: Any = None, **options: Any) -> Texts:
    def item(part: Item | Sequence[Item]) -> Any:
        if isinstance(part, list):
            return [item(each) for each in part]
        return part if isinstance(part, str) else media_of(part)

    further = {} if query is None else {"query": item(query)}
    further |= {"instruction": options.pop("instruction")} if "instruction" in options else {}
    request = ReadRequest(inputs=[*map(item, inputs)], options=TextOptions(**options), truncate=True, **further)
    return TextEncoder(spec).read(request)


class TwoNetworks:
    """Both networks on one backend; numpy: on the reference op set, in float64."""

    def __init__(self, spec: ModelSpec, backend: str = "numpy") -> None:
        self.spec = spec
        self._backend = backend
        self._close: list[Callable[[], None]] = []
        self._texts = self._load(spec)
        self._images = self._load(spec.images) if spec.images is not None else self._texts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for close in self._close:
            close()

    def images(self, texts: Texts) -> Float32:
        """The rows of the texts' images."""
        assert texts.images is not None
        return self._images(texts.images, "dense")

    def answer(self, texts: Texts, output: Output = "dense") -> Float32:
        if texts.images is not None:
            rows = self.images(texts)
            features = np.zeros((len(texts.ids), rows.shape[1]), np.float32)
            features[texts.all_type_ids == 1] = rows if texts.shown is None else rows[texts.shown]
            texts = replace(texts, features=features, images=None)
        return self._texts(texts, output)

    def _load(self, spec: ModelSpec) -> Callable[[Texts, Output], Float32]:
        if self._backend == "numpy":
            network = Network(spec, open_checkpoint(spec.weights, spec.others), NumpyOps())
            return lambda texts, output: network(pack(packed_texts(texts)), {output})[output]
        loaded = load(self._backend, spec)
        self._close.append(loaded.close)
        return lambda texts, output: loaded.forward(
            TokenBatch(texts=packed_texts(texts), outputs=frozenset({output})), 0
        )[output]
