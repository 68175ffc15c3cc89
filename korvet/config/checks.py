"""Checks of settings against each other, and of texts that have a grammar of their own."""

import re
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from korvet.config.address import is_host, parse_address, redacted
from korvet.config.broker_settings import parse_overrides
from korvet.config.errors import ConfigError
from korvet.config.fields import in_variable, key_of
from korvet.config.keys import key_of_listener
from korvet.config.oauth_settings import LOGIN_MODULE
from korvet.config.settings import Config
from korvet.request_log.rules import parse_clients, parse_failed
from korvet.security.authorizer import parse_super_users
from korvet.security.credentials import MECHANISMS
from korvet.security.listeners import ListenerSpec, check_advertised
from korvet.security.oauth.unsecured import UnsecuredRules
from korvet.security.plain import jaas_options, parse_jaas_users
from korvet.security.principals import PrincipalMapper

# Braces delimit Redis Cluster hash tags, a colon delimits the parts of our keys.
_KEYSPACE = re.compile(r"[A-Za-z0-9._-]+\Z")
_LONGEST_KEYSPACE = 100
_REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
# Fields of which the first may not be above the second.
_ORDERED = (
    ("group_min_session_timeout_ms", "group_max_session_timeout_ms"),
    ("group_consumer_min_session_timeout_ms", "group_consumer_max_session_timeout_ms"),
    ("group_consumer_min_heartbeat_interval_ms", "group_consumer_max_heartbeat_interval_ms"),
    *(
        pair
        for name in (
            "session_timeout_ms",
            "heartbeat_interval_ms",
            "assignment_interval_ms",
            "record_lock_duration_ms",
            "delivery_count_limit",
            "partition_max_record_locks",
        )
        for pair in (
            (f"group_share_min_{name}", f"group_share_{name}"),
            (f"group_share_{name}", f"group_share_max_{name}"),
        )
    ),
    ("log_cleaner_min_compaction_lag_ms", "log_cleaner_max_compaction_lag_ms"),
)
# What assigns partitions in consumer groups.
_ASSIGNORS = ("uniform", "range")
# Kafka's name of the authorizer whose rules ours follows.
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def check(config: Config, origin: Callable[[str], str]) -> None:
    """Check settings against each other; `origin` names the source of a field's value. Raises ConfigError."""
    for field in ("listen", "advertise"):
        text = getattr(config, field)
        if text is not None:
            try:
                parse_address(text)
            except ValueError as error:
                raise ConfigError(f"{origin(field)}: {error}") from error
    if config.advertise_address is not None:
        try:
            check_advertised(*config.advertise_address)
        except ValueError as error:
            raise ConfigError(f"{origin('advertise')}: {error}") from error
    _check_security(config, origin)
    _check_admin(config, origin)
    _check_texts(config, {"metrics_topics": _expression, "metrics_groups": _expression}, origin)
    if not _KEYSPACE.match(config.keyspace) or len(config.keyspace) > _LONGEST_KEYSPACE:
        raise ConfigError(
            f"{origin('keyspace')}: expected letters, digits, dots, dashes and underscores, at most "
            f"{_LONGEST_KEYSPACE}, got {config.keyspace!r}"
        )
    alias = config.offsets_topic_alias
    if alias is not None and (alias == "__consumer_offsets" or not _KEYSPACE.match(alias)):
        raise ConfigError(f"{origin('offsets_topic_alias')}: expected a topic name of its own, got {alias!r}")
    if config.redis is not None:
        _check_url(config.redis, origin("redis"))
    for low, high in _ORDERED:
        if getattr(config, low) > getattr(config, high):
            raise ConfigError(_compared(config, low, "is above", high, origin))
    for kind in ("consumer", "share"):
        # Else members would be removed between two heartbeats.
        interval, timeout = f"group_{kind}_heartbeat_interval_ms", f"group_{kind}_session_timeout_ms"
        if getattr(config, interval) >= getattr(config, timeout):
            raise ConfigError(_compared(config, interval, "is not below", timeout, origin))
    _check_topic_settings(config, origin)
    assignors = config.consumer_assignors
    unknown = sorted(set(assignors) - set(_ASSIGNORS))
    if unknown or not assignors:
        raise ConfigError(
            f"{origin('group_consumer_assignors')}: expected some of {', '.join(_ASSIGNORS)}, "
            f"not {unknown[0] if unknown else 'none'}"
        )


def _compared(config: Config, one: str, what: str, other: str, origin: Callable[[str], str]) -> str:
    """Two contradicting settings, with their origins."""
    left, right = (f"{key_of(field)} = {getattr(config, field)} ({origin(field)})" for field in (one, other))
    return f"{left} {what} {right}"


def _check_topic_settings(config: Config, origin: Callable[[str], str]) -> None:
    policies = {part.strip() for part in config.log_cleanup_policy.split(",")}
    # The list may be empty, and may have repetitions (KIP-1161).
    if config.log_cleanup_policy and not policies <= {"compact", "delete"}:
        raise ConfigError(
            f"{origin('log_cleanup_policy')}: expected some of compact, delete, got "
            f"{config.log_cleanup_policy!r}"
        )
    parsers: dict[str, Callable[[str], object]] = {
        "max_connections_per_ip_overrides": parse_overrides,
        "request_log_clients": parse_clients,
        "request_log_failed": parse_failed,
    }
    _check_texts(config, parsers, origin)


def _check_admin(config: Config, origin: Callable[[str], str]) -> None:
    try:
        address = config.admin_address
    except ValueError as error:
        raise ConfigError(f"{origin('admin_listen')}: {error}") from error
    if address is None:
        return
    for field in ("admin_token", "admin_basic_password"):
        if getattr(config, field) is not None and getattr(config, f"{field}_location") is not None:
            raise ConfigError(f"{origin(field)}: {key_of(field)}.location is set too")
    password = config.admin_basic_password or config.admin_basic_password_location
    if (config.admin_basic_user is None) is not (password is None):
        raise ConfigError(
            f"{origin('admin_basic_user')}: admin.basic.user and admin.basic.password are set together"
        )


def _check_security(config: Config, origin: Callable[[str], str]) -> None:
    try:
        specs = config.listener_specs
    except ValueError as error:
        raise ConfigError(f"{origin('listeners')}: {error}") from error
    if config.listeners is None and config.advertised_listeners is not None:
        raise ConfigError(f"{origin('advertised_listeners')}: `listeners` is not set")
    if config.listeners is not None and config.advertise is not None:
        raise ConfigError(f"{origin('advertise')}: with `listeners`, set advertised.listeners instead")
    for spec in specs:
        if spec.host and not is_host(spec.host):
            raise ConfigError(f"{origin('listeners')}: expected a host, not {spec.host!r}")
        if spec.advertised is not None and not is_host(spec.advertised.host):
            host = spec.advertised.host
            raise ConfigError(f"{origin('advertised_listeners')}: expected a host, not {host!r}")
    names = {in_variable(spec.name) for spec in specs}
    for each in config.listener_settings:
        if each.listener not in names:
            raise ConfigError(f"listener.name.{each.listener.lower()}: no listener has that name")
    for spec in specs:
        _check_listener(config.of_listener(spec.name), spec, _origin_of_listener(config, spec, origin))
    if config.authorizer_class_name not in ("", STANDARD_AUTHORIZER):
        raise ConfigError(f"{origin('authorizer_class_name')}: expected {STANDARD_AUTHORIZER} or nothing")
    _check_texts(config, {"super_users": parse_super_users}, origin)


def _origin_of_listener(
    config: Config, spec: ListenerSpec, origin: Callable[[str], str]
) -> Callable[[str], str]:
    own = {each.field for each in config.listener_settings if each.listener == in_variable(spec.name)}
    name = spec.name.lower()
    return lambda field: key_of_listener(name, key_of(field)) if field in own else origin(field)


def _check_listener(config: Config, spec: ListenerSpec, origin: Callable[[str], str]) -> None:
    """Check the settings of one listener; `config` is the result of Config.of_listener."""
    if spec.encrypted and config.ssl_keystore_location is None:
        raise ConfigError(f"{origin('listeners')}: a TLS listener needs ssl.keystore.location")
    if config.ssl_client_auth != "none" and config.ssl_truststore_location is None:
        raise ConfigError(f"{origin('ssl_client_auth')}: clients' certificates need ssl.truststore.location")
    unknown = sorted(set(config.sasl_mechanisms) - set(MECHANISMS))
    if unknown:
        raise ConfigError(
            f"{origin('sasl_enabled_mechanisms')}: expected some of {', '.join(MECHANISMS)}, not {unknown[0]}"
        )
    if config.takes_tokens(spec) and not config.accepts_unsecured_tokens:
        _check_token_keys(config, spec, origin)
    parsers: dict[str, Callable[[str], object]] = {
        "oauthbearer_sasl_jaas_config": lambda text: UnsecuredRules.of(oauth_options(text)),
        "plain_sasl_jaas_config": parse_jaas_users,
        "ssl_principal_mapping_rules": PrincipalMapper,
    }
    _check_texts(config, parsers, origin)


def oauth_options(text: str) -> Mapping[str, str]:
    """The options of Kafka's OAuthBearerLoginModule in a JAAS configuration. Raises ValueError."""
    return jaas_options(text, LOGIN_MODULE, "OPTION=VALUE")


def _check_token_keys(config: Config, spec: ListenerSpec, origin: Callable[[str], str]) -> None:
    """Check where the keys of a listener with OAUTHBEARER come from."""
    url = config.sasl_oauthbearer_jwks_endpoint_url
    if url is None:
        needed = key_of_listener(spec.name.lower(), key_of("sasl_oauthbearer_jwks_endpoint_url"))
        raise ConfigError(f"{origin('sasl_enabled_mechanisms')}: OAUTHBEARER needs {needed}")
    if not _names_keys(url):
        raise ConfigError(
            f"{origin('sasl_oauthbearer_jwks_endpoint_url')}: expected https://HOST/PATH, http://HOST/PATH "
            "or file:///PATH"
        )
    low, high = (f"sasl_oauthbearer_jwks_endpoint_retry_backoff{part}_ms" for part in ("", "_max"))
    if getattr(config, low) > getattr(config, high):
        raise ConfigError(_compared(config, low, "is above", high, origin))


def _names_keys(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    # A password would be shown with the URL.
    if parts.username is not None or port == 0:
        return False
    return bool(parts.hostname) if parts.scheme in ("https", "http") else parts[:2] == ("file", "")


def _check_texts(
    config: Config, parsers: Mapping[str, Callable[[str], object]], origin: Callable[[str], str]
) -> None:
    for field, parse in parsers.items():
        try:
            parse(getattr(config, field))
        except ValueError as error:
            raise ConfigError(f"{origin(field)}: {error}") from error


def _expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error


def _check_url(url: str, origin: str) -> None:
    scheme = url.strip().partition(":")[0].lower()
    if scheme not in _REDIS_SCHEMES:
        raise ConfigError(
            f"{origin}: expected a URL starting with {'://, '.join(_REDIS_SCHEMES)}://, got {redacted(url)!r}"
        )
