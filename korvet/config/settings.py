"""The broker's settings: one frozen `Config`.

Settings that exist in Kafka have Kafka's dotted names.
"""

from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from korvet.config.fields import Count, Duration, in_variable, key_of
from korvet.config.oauth_settings import OAuthSettings
from korvet.security.credentials import OAUTHBEARER, PASSWORD_MECHANISMS
from korvet.security.listeners import Endpoint, ListenerSpec, listeners, parse_endpoints, parse_protocol_map

# The name of the single listener if `listeners` isn't set.
_PLAINTEXT = "PLAINTEXT"


class ListenerSetting(NamedTuple):
    """A setting of one listener, which replaces a field of `Config` for that listener."""

    listener: str
    """The listener's name in capitals, with underscores for dots and dashes, as in environment variables."""
    field: str
    value: object


class Config(OAuthSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=key_of):
    """All settings of one broker process. Names end with their unit: `_us`, `_ms`, `_minutes`, `_bytes`."""

    listeners: Annotated[
        str | None,
        Meta(description="Named listeners, comma-separated NAME://HOST:PORT as in Kafka; replaces `listen`."),
    ] = None
    advertised_listeners: Annotated[
        str | None,
        Meta(
            description="Addresses that clients connect to, by listener name, if they differ from "
            "`listeners`."
        ),
    ] = None
    listener_security_protocol_map: Annotated[
        str,
        Meta(
            description="Protocol of each listener, comma-separated NAME:PROTOCOL (PLAINTEXT, SSL, "
            "SASL_PLAINTEXT, SASL_SSL)."
        ),
    ] = "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
    sasl_enabled_mechanisms: Annotated[
        str, Meta(description="SASL mechanisms offered to clients, comma-separated.")
    ] = ",".join(PASSWORD_MECHANISMS)
    plain_sasl_jaas_config: Annotated[
        str,
        Meta(
            description="PLAIN users in addition to those with SCRAM credentials, in the syntax of Kafka's "
            "PlainLoginModule."
        ),
    ] = ""
    connections_max_reauth_ms: Annotated[
        Duration,
        Meta(description="Time after which a client must authenticate again (KIP-368); 0 means never."),
    ] = 0
    connection_failed_authentication_delay_ms: Annotated[
        Count, Meta(description="Delay between a failed authentication request and its response.")
    ] = 100
    ssl_keystore_location: Annotated[
        str | None,
        Meta(description="PEM file with the private key and the certificate chain of TLS listeners."),
    ] = None
    ssl_key_password: Annotated[
        str | None, Meta(description="Password of the private key, if it is encrypted.")
    ] = None
    ssl_truststore_location: Annotated[
        str | None, Meta(description="PEM file with the authorities that sign clients' certificates.")
    ] = None
    ssl_client_auth: Annotated[
        Literal["none", "requested", "required"],
        Meta(description="Whether clients of SSL listeners must present a certificate."),
    ] = "none"
    ssl_enabled_protocols: Annotated[
        Literal["TLSv1.2,TLSv1.3", "TLSv1.3"], Meta(description="Enabled TLS versions.")
    ] = "TLSv1.2,TLSv1.3"
    ssl_cipher_suites: Annotated[
        str | None,
        Meta(description="Ciphers for TLS 1.2, by their OpenSSL names. If not set, OpenSSL's defaults."),
    ] = None
    ssl_principal_mapping_rules: Annotated[
        str, Meta(description="Rules that translate a certificate's subject into a user name (KIP-371).")
    ] = "DEFAULT"
    authorizer_class_name: Annotated[
        str,
        Meta(
            description="Set to `org.apache.kafka.metadata.authorizer.StandardAuthorizer`, the name of "
            "Kafka's authorizer, to enforce ACLs. If empty, everything is allowed."
        ),
    ] = ""
    super_users: Annotated[
        str, Meta(description="Principals that may do everything, separated by semicolons.")
    ] = ""
    allow_everyone_if_no_acl_found: Annotated[
        bool, Meta(description="Whether everyone may use a resource that has no ACL.")
    ] = False

    listener_settings: tuple[ListenerSetting, ...] = ()
    """Settings `listener.name.NAME.KEY`, which aren't fields of this class."""

    def of_listener(self, name: str) -> "Config":
        """Returns the settings that apply to one listener."""
        mine = {
            each.field: each.value for each in self.listener_settings if each.listener == in_variable(name)
        }
        return msgspec.structs.replace(self, **mine) if mine else self

    @property
    def listener_specs(self) -> tuple[ListenerSpec, ...]:
        """All listeners, with or without `listeners`. Raises ValueError for contradictions."""
        if self.listeners is not None:
            return listeners(
                parse_endpoints(self.listeners),
                parse_endpoints(self.advertised_listeners or ""),
                parse_protocol_map(self.listener_security_protocol_map),
            )
        address = self.advertise_address
        advertised = None if address is None else Endpoint(_PLAINTEXT, *address)
        return (ListenerSpec(_PLAINTEXT, *self.listen_address, "PLAINTEXT", advertised),)

    @property
    def sasl_mechanisms(self) -> tuple[str, ...]:
        """The names in `sasl.enabled.mechanisms`."""
        parts = (part.strip() for part in self.sasl_enabled_mechanisms.split(","))
        return tuple(part for part in parts if part)

    def takes_tokens(self, spec: ListenerSpec) -> bool:
        """Whether clients of a listener may log in with OAUTHBEARER, if these are its settings."""
        return spec.authenticates and OAUTHBEARER in self.sasl_mechanisms
