"""OAUTHBEARER: JSON Web Tokens as bearer tokens (RFC 6750), their checks, and the exchange (RFC 7628)."""
