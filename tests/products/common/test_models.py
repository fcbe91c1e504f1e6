"""The list of served models has the keys of every product that shares its path."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.dialects import all_dialects
from tests.products.results import model_info, model_list

from vectord.errors import Forbidden
from vectord.products.common.dialect import Dialect, Incoming, Rendered, Route
from vectord.products.common.models import ready_models
from vectord.schema import ListModels
from vectord.server.grpc import messages

NONE_SERVED = replace(model_list(), models=[])  # for a key with `models = []`
LISTS = [
    pytest.param(dialect, route, id=f"{dialect.name} {route.path}")
    for dialect in all_dialects()
    for route in dialect.routes
    if route.method == "GET"
]
# --- readiness ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("required", "starting", "states", "ready"),
    [
        ("any", False, ["failed", "ready"], True),
        ("any", False, ["failed", "failed"], False),
        ("any", True, ["ready", "loading"], False),
        ("first", False, ["failed", "ready"], False),
        ("first", False, ["stalled", "ready"], False),
        ("first", False, ["unloaded", "failed"], True),
        ("first", True, ["ready", "loading"], True),
        ("first", True, ["loading", "ready"], False),
        ("all", False, ["ready", "failed"], False),
        ("all", False, ["ready", "unloaded"], True),
        ("all", True, ["ready", "ready"], False),
    ],
)
def test_required_models_decide_about_readiness(required, starting, states, ready):
    """The setting requires any model, the first, or all. An unloaded model counts: its first request loads it."""
    infos = [model_info(f"m{place}", state=state) for place, state in enumerate(states)]
    served = replace(model_list(*infos), starting=starting, required=required)
    assert bool(ready_models(served)) is ready


@pytest.mark.parametrize(("dialect", "route"), LISTS)
def test_a_key_without_models_gets_an_answer_or_a_clear_error(dialect: Dialect, route: Route):
    """Such a key has `models = []` in the keys file."""
    call = route.parse(Incoming(body=b"", path={"model": "m"}, models=NONE_SERVED.models))
    if not isinstance(call.request, ListModels) or call.request.model is not None:  # the engine knows no such model
        return
    try:
        assert isinstance(call.render(NONE_SERVED), Rendered)
    except Forbidden as error:
        assert error.message == "This key may use none of the models served here."
        assert dialect.render_error(error).status == 403


def test_grpc_refuses_info_for_a_key_without_models():
    """The client gets no internal error."""
    with pytest.raises(Forbidden):
        messages.facts(NONE_SERVED)
