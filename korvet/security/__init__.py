"""Authentication and authorization: SASL, principals, ACLs, listeners. No module here does I/O."""
