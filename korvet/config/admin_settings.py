"""The settings of the admin endpoint."""

from typing import Annotated

from msgspec import Meta

from korvet.config.address import Address, parse_address
from korvet.config.fields import INT32_MAX, Count, key_of
from korvet.config.topic_settings import TopicSettings

# An empty secret would admit everybody.
_Secret = Annotated[str, Meta(min_length=1)]


class AdminSettings(TopicSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=key_of):
    """The part of `Config` about metrics, health and status by HTTP."""

    admin_listen: Annotated[
        str,
        Meta(
            description="Address of the admin endpoint (metrics, health, status), HOST:PORT. Port 0 is any "
            "free one. If empty, there is no endpoint."
        ),
    ] = ""
    admin_socket: Annotated[
        str | None,
        Meta(
            description="Path of a unix socket with the same pages, for processes of the same user. It needs "
            "no token. With `--processes`, the main process serves it. `-` stands for connections that the "
            "parent process hands over by standard input, as this main process does."
        ),
    ] = None
    admin_ssl_keystore_location: Annotated[
        str | None,
        Meta(
            description="PEM file with the private key and the certificates of the admin endpoint; with it, "
            "the endpoint uses TLS."
        ),
    ] = None
    admin_ssl_key_password: Annotated[
        str | None, Meta(description="Password of the admin endpoint's private key, if it is encrypted.")
    ] = None
    admin_token: Annotated[
        _Secret | None,
        Meta(description="Token with which clients may read metrics and status (Bearer)."),
    ] = None
    admin_token_location: Annotated[
        str | None, Meta(description="File with that token; replaces `admin.token`.")
    ] = None
    admin_basic_user: Annotated[
        str | None, Meta(description="User name with which clients may read metrics and status (Basic).")
    ] = None
    admin_basic_password: Annotated[_Secret | None, Meta(description="Password of that user.")] = None
    admin_basic_password_location: Annotated[
        str | None, Meta(description="File with that password; replaces `admin.basic.password`.")
    ] = None
    admin_ready_redis_ms: Annotated[
        int,
        Meta(
            ge=1000,
            le=INT32_MAX,
            description="Longest time since the last reply of Redis with which the broker is ready.",
        ),
    ] = 3_000
    metrics_lag_interval_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=INT32_MAX,
            description="How often the broker counts the records of partitions and the lag of groups for "
            "metrics.",
        ),
    ] = 5_000
    metrics_topics: Annotated[
        str, Meta(description="Regular expression of the topics that metrics show one by one.")
    ] = ".*"
    metrics_groups: Annotated[
        str, Meta(description="Regular expression of the groups that metrics show one by one.")
    ] = ".*"
    metrics_max_rows: Annotated[
        Count,
        Meta(
            description="Most partitions, and most pairs of a group and a partition, that the metrics of one "
            "broker show one by one. Further topics and groups are left out as a whole."
        ),
    ] = 20_000

    @property
    def serves_admin(self) -> bool:
        """Whether there is an admin endpoint."""
        return bool(self.admin_listen) or self.admin_socket is not None

    @property
    def admin_address(self) -> Address | None:
        """`admin.listen`, taken apart; None if there is no admin endpoint. Raises ValueError."""
        return parse_address(self.admin_listen) if self.admin_listen else None
