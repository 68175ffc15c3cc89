"""Groups of the consumer protocol (KIP-848), where the coordinator assigns partitions.

A member sends heartbeats that say what it subscribes to and what it owns; the replies say what it may use.
What the parts do: `group` holds the state, which changes by replay of records alone; `draft` gathers the
records of one request; `member` takes one member a step towards its target; `assignors` make the targets;
`membership` answers requests; `migration` turns classic groups into these and back.
"""
