"""Runs in Airflow's environment: imports a folder of DAGs and calls the tasks of korvet_report, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowException, AirflowFailException


def outcome(tasks: Any) -> str:
    """What a run ends with: nothing, a failure that is retried, or one that is not."""
    try:
        tasks["check"].python_callable(tasks["report"].python_callable())
    except AirflowFailException as error:
        return f"fails: {error}"
    except AirflowException as error:
        return f"retries: {error}"
    return "passes"


def main(folder: str) -> None:
    bag = DagBag(folder)
    tasks = bag.dags["korvet_report"].task_dict if "korvet_report" in bag.dags else {}
    found = {
        "import_errors": bag.import_errors,
        "order": {name: sorted(task.upstream_task_ids) for name, task in tasks.items()},
        "outcome": outcome(tasks) if tasks else None,
    }
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
