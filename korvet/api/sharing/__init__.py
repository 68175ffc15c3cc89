"""ShareFetch and ShareAcknowledge (KIP-932): sessions, acknowledgements, and the queues that they share."""
