"""The settings of the log, apart from its level, and of the request log."""

from typing import Annotated, Literal

from msgspec import Meta

from korvet.config.admin_settings import AdminSettings
from korvet.config.fields import INT32_MAX, key_of


class LogSettings(AdminSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=key_of):
    """The part of `Config` about the form of the log, and the requests that are logged."""

    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="Form of the log on standard error: lines of text, or one JSON object per line."),
    ] = "text"
    request_log_slow_ms: Annotated[
        int,
        Meta(
            ge=-1,
            le=INT32_MAX,
            description="Requests that take longer are logged. The wait that a Fetch or JoinGroup request "
            "allows does not count. -1 logs none.",
        ),
    ] = -1
    request_log_failed: Annotated[
        str,
        Meta(
            description="Requests that are answered with one of these errors are logged: Kafka's names or "
            "patterns, comma-separated; `!` before one excludes it."
        ),
    ] = ""
    request_log_clients: Annotated[
        str,
        Meta(
            description="Requests of these clients are logged: selectors such as "
            "`client=orders-*,api=Produce;address=10.1.0.0/16`, by `client` (the ID), `principal`, `address` "
            "and `api`."
        ),
    ] = ""
