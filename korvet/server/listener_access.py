"""What a listener requires of clients before it serves them: a certificate, an authentication, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.security.certificates import InvalidCertificate, certificate_of
from korvet.security.plain import parse_jaas_users
from korvet.security.principals import ANONYMOUS, PrincipalMapper
from korvet.security.sasl import SaslSession

if TYPE_CHECKING:
    import asyncio

    from korvet.config.settings import Config
    from korvet.security.authorizer import Access, Authorizer
    from korvet.security.credentials import Credentials
    from korvet.security.listeners import ListenerSpec
    from korvet.security.oauth.exchange import TokenCheck


class ListenerAccess:
    """The rules of one listener, shared by all its connections. This one serves every client."""

    name = "PLAINTEXT"

    def principal_of(self, transport: asyncio.BaseTransport) -> str:
        """The principal of a client that has just connected. Raises ValueError for a certificate that names
        no principal.
        """
        del transport
        return ANONYMOUS

    def new_session(self) -> SaslSession | None:
        """The authentication that a client has to complete; None if it need not authenticate."""
        return None

    def access(self, principal: str, host: str) -> Access | None:
        """What a client may do; None if it may do everything."""
        del principal, host
        return None


OPEN_ACCESS: Final = ListenerAccess()


class ConfiguredAccess(ListenerAccess):
    """The rules of a listener as the settings give them."""

    def __init__(
        self,
        spec: ListenerSpec,
        config: Config,
        authorizer: Authorizer | None,
        credentials: Credentials,
        tokens: TokenCheck | None = None,
    ) -> None:
        """config: the settings of this listener. authorizer: None without ACLs. tokens: None if OAUTHBEARER
        is not prepared.
        """
        self.name = spec.name
        self.port = spec.port
        """The TCP port that is listened on."""
        self._spec = spec
        self._authorizer = authorizer
        self._shared = credentials
        self._tokens = tokens
        self.follow(config)

    def follow(self, config: Config) -> None:
        """Use other settings of this listener for new connections and authentications."""
        self._config = config
        users = parse_jaas_users(config.plain_sasl_jaas_config)
        self._credentials = self._shared.beside(users, self._tokens)
        self._mapper = PrincipalMapper(config.ssl_principal_mapping_rules)

    def principal_of(self, transport: asyncio.BaseTransport) -> str:
        if not self._spec.encrypted or self._spec.authenticates:
            return ANONYMOUS
        certificate = transport.get_extra_info("ssl_object").getpeercert(True)
        if certificate is None:
            return ANONYMOUS
        try:
            return self._mapper.principal(certificate_of(certificate).subject)
        except InvalidCertificate as error:
            raise ValueError(str(error)) from error

    def new_session(self) -> SaslSession | None:
        if not self._spec.authenticates:
            return None
        config = self._config
        lifetime_ms = config.connections_max_reauth_ms
        return SaslSession(self._credentials, config.sasl_mechanisms, lifetime_ms, self.port)

    def access(self, principal: str, host: str) -> Access | None:
        return None if self._authorizer is None else self._authorizer.access(principal, host)
