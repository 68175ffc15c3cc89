"""The asyncio rim of the coordinators: it loads shards from the log, appends what the shards write, keeps
their timers, and projects commits onto Redis groups. `service.CoordinatorService` is the entrance.
"""
