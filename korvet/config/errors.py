"""What a setting that cannot be used raises."""


class ConfigError(ValueError):
    """A setting that cannot be used. The message names the source (file, variable, flag) and the key."""
