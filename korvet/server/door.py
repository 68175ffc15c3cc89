"""What a listener asks of clients before they are let in: a certificate, an authentication, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.security.plain import parse_jaas_users
from korvet.security.principals import ANONYMOUS, InvalidCertificate, PrincipalMapper, subject_of
from korvet.security.sasl import SaslSession

if TYPE_CHECKING:
    import asyncio

    from korvet.config.settings import Config
    from korvet.security.authorizer import Access, Authorizer
    from korvet.security.credentials import Credentials
    from korvet.security.listeners import ListenerSpec


class Door:
    """One listener's, for all its connections."""

    name = "PLAINTEXT"

    def principal_of(self, transport: asyncio.BaseTransport) -> str:
        """Who has connected, before any request. Raises ValueError for a certificate of nobody."""
        del transport
        return ANONYMOUS

    def new_session(self) -> SaslSession | None:
        """The authentication that is asked for; None where none is."""
        return None

    def access(self, principal: str, host: str) -> Access | None:
        """What a client may do; None is everything."""
        del principal, host
        return None


OPEN_DOOR: Final = Door()


class GuardedDoor(Door):
    """The door of a listener as it is configured."""

    def __init__(
        self, spec: ListenerSpec, config: Config, authorizer: Authorizer | None, credentials: Credentials
    ) -> None:
        """config: as it is for this listener."""
        self.name = spec.name
        self._spec = spec
        self._config = config
        self._authorizer = authorizer
        self._credentials = credentials.beside(parse_jaas_users(config.plain_sasl_jaas_config))
        self._mapper = PrincipalMapper(config.ssl_principal_mapping_rules)

    def principal_of(self, transport: asyncio.BaseTransport) -> str:
        if not self._spec.encrypted or self._spec.authenticates:
            return ANONYMOUS
        certificate = transport.get_extra_info("ssl_object").getpeercert(True)
        if certificate is None:
            return ANONYMOUS
        try:
            return self._mapper.principal(subject_of(certificate))
        except InvalidCertificate as error:
            raise ValueError(str(error)) from error

    def new_session(self) -> SaslSession | None:
        if not self._spec.authenticates:
            return None
        config = self._config
        return SaslSession(self._credentials, config.sasl_mechanisms, config.connections_max_reauth_ms)

    def access(self, principal: str, host: str) -> Access | None:
        return None if self._authorizer is None else self._authorizer.access(principal, host)
