"""One module per Kafka API. Importing the package registers them all."""

import importlib
import pkgutil


def load_all() -> None:
    """Import every API module, so that the registry is complete."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
