"""The error of backup and restore."""


class BackupError(Exception):
    """A backup or a restore has failed. The message names the reason and what is unchanged."""
