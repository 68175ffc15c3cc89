"""Random ids, of the cluster and of topics, as Kafka's tools can take them for an argument."""

from __future__ import annotations

import uuid

from korvet.offsets.wire import uuid_text


def random_uuid() -> uuid.UUID:
    """A random UUID whose text does not begin with a dash, which a command line would take for an option.

    As Kafka's Uuid.randomUuid.
    """
    while True:
        found = uuid.uuid4()
        if not uuid_text(found.bytes).startswith("-"):
            return found
