"""Which gRPC status every error has, and what its caller reads beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from grpc import StatusCode

from vectord import errors
from vectord.errors import Overloaded, Unavailable, VectordError
from vectord.products.common.errors import retry_after_s, row_of

# Of these, clients retry UNAVAILABLE, and RESOURCE_EXHAUSTED where their configuration says so.
CODES: Mapping[type[VectordError], StatusCode] = {
    errors.VectordError: StatusCode.INTERNAL,
    errors.InvalidRequest: StatusCode.INVALID_ARGUMENT,
    errors.ModelNotFound: StatusCode.NOT_FOUND,
    errors.ModelCannot: StatusCode.FAILED_PRECONDITION,
    errors.FingerprintMismatch: StatusCode.FAILED_PRECONDITION,
    errors.Unauthorized: StatusCode.UNAUTHENTICATED,
    errors.Forbidden: StatusCode.PERMISSION_DENIED,
    errors.NoSuchRoute: StatusCode.UNIMPLEMENTED,
    errors.Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: StatusCode.UNAVAILABLE,
    errors.TimedOut: StatusCode.DEADLINE_EXCEEDED,
    errors.InferenceFailed: StatusCode.FAILED_PRECONDITION,
    errors.InferenceTimedOut: StatusCode.DEADLINE_EXCEEDED,
}


def code_of(error: VectordError) -> StatusCode:
    return row_of(CODES, error)


def trailers_of(error: VectordError) -> tuple[tuple[str, str], ...]:
    """When to try again, as gRPC's own retry policy reads it."""
    if isinstance(error, Overloaded | Unavailable):
        return (("grpc-retry-pushback-ms", str(math.ceil(retry_after_s(error) * 1000))),)
    return ()
