"""The asyncio rim of the group coordinator: it loads the shards from `__consumer_offsets`, appends what they
write, keeps their timers, and projects commits onto Redis groups. `service.CoordinatorService` is the
entrance.
"""
