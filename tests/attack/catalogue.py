"""All attacks, in the order in which they run. A new family is a module with ATTACKS and an entry here."""

from __future__ import annotations

from tests.attack import batches, bodies, connections, floods, framing, grpc_frames, heads, keys, tls
from tests.attack.runner import Attack

FAMILIES = (heads, framing, connections, bodies, batches, keys, floods, tls, grpc_frames)
ATTACKS: tuple[Attack, ...] = tuple(attack for family in FAMILIES for attack in family.ATTACKS)
