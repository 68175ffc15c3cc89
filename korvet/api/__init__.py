"""One module per Kafka API. Importing the package registers them all."""

import importlib
import pkgutil


def load_all() -> None:
    """Import every API module, so that the registry is complete. Folders hold what API modules share."""
    for module in pkgutil.iter_modules(__path__):
        if not module.ispkg:
            importlib.import_module(f"{__name__}.{module.name}")
