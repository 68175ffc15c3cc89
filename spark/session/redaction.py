"""Texts without the passwords of the URLs in them: for messages, logs, and what is kept on disk.

It hides rather too much than too little: a port goes with a password if the two cannot be told apart.
"""

from __future__ import annotations

import re

HIDDEN = "***"

# scheme://user:password@host; the password may have any character, an @ included.
_USERS = re.compile(r"(://[^:/?#\s]*:)\S*@")
# Drivers of Oracle: jdbc:oracle:thin:user/password@host.
_ORACLE = re.compile(r"(\boracle:\w+:[^/\s@]*/)\S*@", re.IGNORECASE)
# NAME=VALUE in a query, after a semicolon, in parentheses. SQL Server has values in braces.
_NAMED = re.compile(
    r"""([\w.-]*(?:password|passwd|passphrase|pwd|secret|token|credential|signature|
        (?:api|access|account|shared|private)[._-]?key)[\w.-]*|\bsig)
        (\s*=\s*)
        (?:\{(?:[^}]|\}\})*\}|"[^"]*"|'[^']*'|[^&;\s]+)""",
    re.IGNORECASE | re.VERBOSE,
)


def redacted(text: str) -> str:
    """The text with *** for each password, secret key and token of a URL in it."""
    text = _ORACLE.sub(rf"\1{HIDDEN}@", text)
    text = _NAMED.sub(rf"\1\2{HIDDEN}", text)
    return _USERS.sub(rf"\1{HIDDEN}@", text)
