"""The settings of listeners, authentication and authorization."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from korvet.config.fields import Count, Duration, key_of
from korvet.security.credentials import MECHANISMS


class SecuritySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=key_of):
    """The part of `Config` about who may connect, and what they may do."""

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
    ] = ",".join(MECHANISMS)
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

    @property
    def sasl_mechanisms(self) -> tuple[str, ...]:
        """The names in `sasl.enabled.mechanisms`."""
        parts = (part.strip() for part in self.sasl_enabled_mechanisms.split(","))
        return tuple(part for part in parts if part)
