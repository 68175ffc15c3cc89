"""Simulates brokers with a planted defect: `python -m robustness.simulation.defects DEFECT MOST_SEEDS`.

Prints the report of the first seed that shows the defect; fails if none does.
"""

import sys

from robustness.simulation import worker


def main(name: str, most: int) -> int:
    """Run seeds until one shows a defect. Returns 1 if none does."""
    worker.prepare()
    from robustness.defects import DEFECTS  # noqa: PLC0415 - imports korvet

    defect = DEFECTS[name]
    defect.plant()
    for seed in range(1, most + 1):
        failure = worker.run(seed).failure
        if any(f"  {kind}  violation" in failure for kind in defect.kinds):
            sys.stdout.write(failure)
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
