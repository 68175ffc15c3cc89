"""Hides the passwords of URLs in texts, for messages, logs and files.

In doubt it hides more: it hides a port too if the port could be part of the password.
"""

from __future__ import annotations

import re

HIDDEN = "***"

# scheme://user:password@host; the password may contain any character, including @.
_USERS = re.compile(r"(://[^:/?#\s]*:)\S*@")
# Oracle's drivers: jdbc:oracle:thin:user/password@host.
_ORACLE = re.compile(r"(\boracle:\w+:[^/\s@]*/)\S*@", re.IGNORECASE)
# NAME=VALUE in a query, after a semicolon or in parentheses. SQL Server writes values in braces.
_NAMED = re.compile(
    r"""([\w.-]*(?:password|passwd|passphrase|pwd|secret|token|credential|signature|
        (?:api|access|account|shared|private)[._-]?key)[\w.-]*|\bsig)
        (\s*=\s*)
        (?:\{(?:[^}]|\}\})*\}|"[^"]*"|'[^']*'|[^&;\s]+)""",
    re.IGNORECASE | re.VERBOSE,
)


def redacted(text: str) -> str:
    """Return the text with *** in place of each password, secret key and token of a URL."""
    text = _ORACLE.sub(rf"\1{HIDDEN}@", text)
    text = _NAMED.sub(rf"\1\2{HIDDEN}", text)
    return _USERS.sub(rf"\1{HIDDEN}@", text)
