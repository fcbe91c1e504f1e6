"""Whether scores are what they must be."""

from __future__ import annotations

from vectord.tools.check.subject import Check, Subject, demand
from vectord.tools.probe.forms import PASSAGES, QUERY, rerank

RELEVANT = 1  # of PASSAGES


def _scores(subject: Subject) -> dict[int, float]:
    reply, scores = rerank(subject.server, subject.rerank_form, QUERY, PASSAGES, subject.model)
    demand(scores is not None, f"no finite score for each passage: {reply.said()}")
    assert scores is not None
    return scores


def relevant_first(subject: Subject) -> None:
    scores = _scores(subject)
    best = max(scores, key=lambda index: scores[index])
    demand(
        best == RELEVANT, f"the passage that answers the query has {scores[RELEVANT]:.4f}, another {scores[best]:.4f}"
    )


def descending(subject: Subject) -> None:
    found = list(_scores(subject).values())
    demand(found == sorted(found, reverse=True), f"scores are not in descending order: {found}")


def same_again(subject: Subject) -> None:
    one, other = _scores(subject), _scores(subject)
    most = max(abs(one[index] - other[index]) for index in one)
    demand(most <= 0.01 * max(1.0, *map(abs, one.values())), f"the same pairs twice: {most:.4f} apart")


def no_passages(subject: Subject) -> None:
    form = subject.rerank_form
    reply = subject.server.post(form.path, form.body(QUERY, [], subject.model))
    demand(reply.status == 200 or 400 <= reply.status < 500, f"no passages: {reply.said()}")


CHECKS = (
    Check("the passage that answers comes first", relevant_first),
    Check("scores descend", descending),
    Check("the same pairs have the same scores", same_again),
    Check("no passages are an empty answer or an error of the caller", no_passages),
)
