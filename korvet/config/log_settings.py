"""The settings of the log, apart from its level."""

from typing import Annotated, Literal

from msgspec import Meta

from korvet.config.admin_settings import AdminSettings
from korvet.config.fields import key_of


class LogSettings(AdminSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=key_of):
    """The part of `Config` about the form of the log."""

    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="Form of the log on standard error: lines of text, or one JSON object per line."),
    ] = "text"
