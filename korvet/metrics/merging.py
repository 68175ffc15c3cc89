"""One page of metrics from the pages of several brokers. Pure.

The series of a family that every broker reports for itself get a label with the node ID. A family of which
each series is reported by one broker (Family.by_one_broker) stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.metrics.declared import declared
from korvet.metrics.exposition import name_of, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NODE: Final = "node_id"
_HELP: Final = "\n# HELP "
_END: Final = "# EOF\n"


def merged(own: str, pages: Mapping[int, str], *, open_metrics: bool) -> Iterator[str]:
    """Yield a page in pieces: the series of the page `own` without a node ID, then those of each broker's
    page. If two brokers report the same series of one broker, as during a change of leaders, the first one
    counts.
    """
    by_one = {name_of(each, open_metrics=open_metrics) for each in declared().values() if each.by_one_broker}
    blocks: dict[str, list[tuple[int | None, str]]] = {}
    for node_id, page in ((None, own), *pages.items()):
        for name, block in _blocks(page):
            blocks.setdefault(name, []).append((node_id, block))
    for name, of_family in blocks.items():
        help_line, type_line, _ = of_family[0][1].split("\n", 2)
        yield f"{_HELP[1:]}{help_line}\n{type_line}\n"
        yield from pieces(_once(of_family) if name in by_one else _labelled(of_family))
    if open_metrics:
        yield _END


def _blocks(page: str) -> Iterator[tuple[str, str]]:
    """The families of a page: the name, and the text after `# HELP `, which ends with a newline."""
    for block in ("\n" + page.removesuffix(_END)).split(_HELP)[1:]:
        yield block.partition(" ")[0], block if block.endswith("\n") else block + "\n"


def _samples(block: str) -> list[str]:
    # Values of labels may have other characters that end lines for `splitlines`.
    return block.split("\n")[2:-1]


def _once(blocks: list[tuple[int | None, str]]) -> Iterator[str]:
    seen: set[str] = set()
    for _, block in blocks:
        for line in _samples(block):
            series = line.rpartition(" ")[0]
            if series not in seen:
                seen.add(series)
                yield f"{line}\n"


def _labelled(blocks: list[tuple[int | None, str]]) -> Iterator[str]:
    for node_id, block in blocks:
        if node_id is None:
            yield from (f"{line}\n" for line in _samples(block))
            continue
        label = f'{NODE}="{node_id}"'
        for line in _samples(block):
            name, space, value = line.partition(" ")
            brace = name.find("{")
            if brace < 0:
                yield f"{name}{{{label}}}{space}{value}\n"
            else:
                yield f"{line[: brace + 1]}{label},{line[brace + 1 :]}\n"
