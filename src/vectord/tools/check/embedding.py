"""Whether vectors are what they must be, whatever the API they come by."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from vectord.tools.check.subject import Check, NotOffered, Subject, demand
from vectord.tools.probe.forms import Vectors, embed, read_vectors

TEXTS = (
    "A cat sits on the warm windowsill.",
    "A kitten is lying by the window in the sun.",
    "The central bank raised interest rates again.",
)
UNICODE = ("Ciao mondo!", "你好世界", "مرحبا بالعالم", "Grüße 👋🏽", "e\u0301")
LEAST_SAME_COSINE = 0.99  # of one text with itself: half precision and padding stay above


def cosine(one: Vectors, other: Vectors) -> float:
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / size if size else 0.0


def vectors_of(subject: Subject, texts: Sequence[str]) -> Vectors:
    """Raises Failed."""
    reply, vectors = embed(subject.server, subject.embed_form, texts, subject.model)
    demand(vectors is not None, f"no finite vector for each of {len(texts)} texts: {reply.said()}")
    assert vectors is not None
    return vectors


def one_vector_a_text(subject: Subject) -> None:
    vectors = vectors_of(subject, TEXTS)
    demand(np.linalg.norm(vectors, axis=1).all(), "a vector of zeros")


def same_text_same_vector(subject: Subject) -> None:
    first, second = vectors_of(subject, TEXTS[:1])[0], vectors_of(subject, TEXTS[:1])[0]
    found = cosine(first, second)
    demand(found >= LEAST_SAME_COSINE, f"one text twice has the cosine {found:.4f}")


def alone_or_in_a_batch(subject: Subject) -> None:
    together = vectors_of(subject, TEXTS)
    least = min(cosine(vectors_of(subject, [text])[0], row) for text, row in zip(TEXTS, together, strict=True))
    demand(least >= LEAST_SAME_COSINE, f"a text alone and among others has the cosine {least:.4f}")


def order_in_is_order_out(subject: Subject) -> None:
    first, rotated = vectors_of(subject, TEXTS), vectors_of(subject, (*TEXTS[1:], TEXTS[0]))
    least = min(cosine(one, other) for one, other in zip(first, [rotated[-1], *rotated[:-1]], strict=True))
    demand(least >= LEAST_SAME_COSINE, f"the same texts in another order: cosine {least:.4f}")


def near_texts_are_nearer(subject: Subject) -> None:
    cat, kitten, bank = vectors_of(subject, TEXTS)
    near, far = cosine(cat, kitten), cosine(cat, bank)
    demand(near > far, f"a text about the same has the cosine {near:.3f}, one about something else {far:.3f}")


def every_script(subject: Subject) -> None:
    vectors_of(subject, UNICODE)


def many_at_once(subject: Subject) -> None:
    """Each of 16 callers gets its own answer."""
    texts = [f"{TEXTS[i % 3]} Number {i}." for i in range(16)]
    expected = vectors_of(subject, texts)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda text: embed(subject.server, subject.embed_form, [text], subject.model), texts))
    for place, (reply, vectors) in enumerate(found):
        demand(vectors is not None, f"caller {place} of 16: {reply.said()}")
        assert vectors is not None
        same = cosine(vectors[0], expected[place])
        demand(same >= LEAST_SAME_COSINE, f"caller {place} of 16 got another text's vector: cosine {same:.4f}")


def long_text(subject: Subject) -> None:
    """Cut or refused, and no fault of the server."""
    reply, vectors = embed(subject.server, subject.embed_form, ["word " * 20_000], subject.model)
    demand(vectors is not None or 400 <= reply.status < 500, f"20,000 words: {reply.said()}")


def base64_is_the_same(subject: Subject) -> None:
    form = subject.embed_form
    if form.name not in ("OpenAI", "infinity"):
        raise NotOffered(f"{form.name} has no encoding_format")
    reply = subject.server.post(form.path, {**form.body(TEXTS, subject.model), "encoding_format": "base64"})
    if 400 <= reply.status < 500:
        raise NotOffered(f"encoding_format base64 is {reply.status}")
    vectors = read_vectors(form, reply, len(TEXTS))
    demand(vectors is not None, f"base64: {reply.said()}")
    assert vectors is not None
    least = min(cosine(one, other) for one, other in zip(vectors, vectors_of(subject, TEXTS), strict=True))
    demand(least >= LEAST_SAME_COSINE, f"base64 and numbers have the cosine {least:.4f}")


def all_kinds(subject: Subject) -> None:
    """Smart Embedder's three vectors of one text."""
    body = {"sentences": [TEXTS[0]], "return_dense": True, "return_sparse": True, "return_colbert": True}
    reply = subject.offered("POST", "/embeddings/", body)
    if 400 <= reply.status < 500:
        raise NotOffered(f"no model that makes all three: {reply.status}")
    answer = reply.json()
    demand(reply.status == 200 and isinstance(answer, dict), reply.said())
    try:
        kinds = answer["data"][0]["embeddings"]
        sparse, colbert = kinds["sparse"], kinds["colbert"]
        weights = [float(weight) for weight in sparse.values()]
        widths = {len(row) for row in colbert}
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        demand(False, "dense, sparse and colbert are not all there")
        return
    demand(weights and min(weights) >= 0, "sparse weights that are negative, or none")
    demand(len(widths) == 1, "colbert vectors of several widths, or none")


def sparse_as_indices(subject: Subject) -> None:
    body = {
        "sentences": [TEXTS[0]],
        "return_dense": False,
        "return_sparse": True,
        "return_colbert": False,
        "sparse_as_indices": True,
    }
    reply = subject.offered("POST", "/embeddings/", body)
    if 400 <= reply.status < 500:
        raise NotOffered(f"no sparse vectors: {reply.status}")
    try:
        sparse = reply.json()["data"][0]["embeddings"]["sparse"]
        is_good = len(sparse["indices"]) == len(sparse["values"]) > 0
    except (KeyError, IndexError, TypeError):
        is_good = False
    demand(reply.status == 200 and is_good, f"no indices and values of one length: {reply.said()}")


CHECKS = (
    Check("one finite vector a text", one_vector_a_text),
    Check("the same text has the same vector", same_text_same_vector),
    Check("a text alone is a text in a batch", alone_or_in_a_batch),
    Check("order in is order out", order_in_is_order_out),
    Check("near texts are nearer than far ones", near_texts_are_nearer),
    Check("texts of every script", every_script),
    Check("16 callers at once each get their own", many_at_once),
    Check("a text of 20,000 words is cut or refused", long_text),
    Check("base64 is the same numbers", base64_is_the_same),
    Check("dense, sparse and ColBERT of one text", all_kinds),
    Check("sparse vectors as indices and values", sparse_as_indices),
)
