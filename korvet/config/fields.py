"""The types of settings, and how the names of fields become keys and environment variables."""

import re
from typing import Annotated, Final

from msgspec import Meta

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
Count = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Size = Annotated[int, Meta(ge=1, le=INT32_MAX)]
# Limits the partitions that a coordinator reads when it starts.
Partitions = Annotated[int, Meta(ge=1, le=10_000)]
Duration = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Limit = Annotated[int, Meta(ge=-1, le=INT64_MAX)]
# Settings without a counterpart in Kafka and without a group. Their keys are their field names.
_PLAIN_KEYS: Final = frozenset({"data_dir", "node_id", "log_level", "processes"})


def in_variable(name: str) -> str:
    """Returns a key or a listener's name in the form that environment variables use."""
    return re.sub(r"[.-]", "_", name).upper()


def key_of(field: str) -> str:
    """Returns the key of a field: dotted as in Kafka, except for `_PLAIN_KEYS`."""
    return field if field in _PLAIN_KEYS else field.replace("_", ".")
