"""The settings of OAUTHBEARER, with the names and the meaning that they have in Kafka (KIP-768)."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from korvet.config.fields import Count, Duration, key_of
from korvet.config.log_settings import LogSettings

_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
LOGIN_MODULE: Final = f"{_PACKAGE}.OAuthBearerLoginModule"
UNSECURED: Final = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"


class OAuthSettings(LogSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=key_of):
    """The part of `Config` about the tokens of clients."""

    sasl_oauthbearer_jwks_endpoint_url: Annotated[
        str | None,
        Meta(
            description="`https:`, `http:` or `file:` URL of the public keys of the issuer (JWKS), which "
            "OAUTHBEARER needs."
        ),
    ] = None
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Annotated[
        Duration, Meta(description="Time after which the keys are fetched again, even if none is missing.")
    ] = 3_600_000
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: Annotated[
        Duration,
        Meta(description="Pause after the first failed fetch of the keys; it doubles with each further one."),
    ] = 100
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: Annotated[
        Duration, Meta(description="Longest pause between two fetches of the keys that fail.")
    ] = 10_000
    sasl_oauthbearer_expected_issuer: Annotated[
        str | None, Meta(description="Tokens must have this issuer (`iss`). If not set, any.")
    ] = None
    sasl_oauthbearer_expected_audience: Annotated[
        str,
        Meta(
            description="Tokens must be for one of these audiences (`aud`), comma-separated. Without any, "
            "tokens that have an audience are refused."
        ),
    ] = ""
    sasl_oauthbearer_clock_skew_seconds: Annotated[
        Count, Meta(description="Difference between the clocks of the issuer and the broker that is allowed.")
    ] = 30
    sasl_oauthbearer_scope_claim_name: Annotated[
        str, Meta(description="Claim that holds the scope of a token; only its form is checked.")
    ] = "scope"
    sasl_oauthbearer_sub_claim_name: Annotated[str, Meta(description="Claim that names the user.")] = "sub"
    oauthbearer_sasl_server_callback_handler_class: Annotated[
        Literal[
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
            "org.apache.kafka.common.security.oauthbearer.internals.unsecured."
            "OAuthBearerUnsecuredValidatorCallbackHandler",
        ],
        Meta(
            description="What checks tokens. The second one, which is Kafka's default, takes tokens without "
            "signatures, so anybody can be anyone: it is for tests."
        ),
    ] = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
    oauthbearer_sasl_jaas_config: Annotated[
        str,
        Meta(
            description="Options of Kafka's OAuthBearerLoginModule: `ssl.truststore.location`, a PEM file "
            "with the authorities of the URL of keys, and the `unsecuredValidator...` options."
        ),
    ] = ""

    @property
    def accepts_unsecured_tokens(self) -> bool:
        """Whether tokens need no signatures."""
        return self.oauthbearer_sasl_server_callback_handler_class == UNSECURED
