"""Who a client is and what it may do: SASL, principals, ACLs, listeners. No module here does I/O."""
