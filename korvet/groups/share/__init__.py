"""Share groups (KIP-932), whose members take records from the same partitions.

A member sends heartbeats with its subscription; the replies contain the partitions from which it may take
records, alone or with other members, so nothing has to be revoked before somebody else gets it. The modules:
`group` holds the state, which changes by replay of records alone; `partitions` what is known of the state of
partitions elsewhere; `draft` collects the records of one request; `assignor` computes targets; `membership`
answers heartbeats; `states` begins and ends what partitions need.
"""
