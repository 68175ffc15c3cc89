"""Groups of the consumer protocol (KIP-848), in which the coordinator assigns partitions.

A member sends heartbeats with its subscription and its owned partitions; the replies contain the partitions
that it may use. The modules: `group` holds the state, which changes by replay of records alone; `draft`
collects the records of one request; `member` moves one member a step towards its target; `assignors` compute
targets; `membership` answers requests; `migration` turns classic groups into consumer groups and back.
"""
