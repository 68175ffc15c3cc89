"""Client quotas: whom they are for, what they allow, and when a client has to wait. Pure."""
