"""Transfers between accounts as transactions, while korvet and its Redis are killed: each requested
transfer happens exactly once, and never half of one.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from tests.api.asking import connect
from tests.api.test_transactions import FIRST_PROTOCOL, SECOND_PROTOCOL
from tests.api.test_txn_offsets import Mover
from tests.faults.test_kill import KILLS
from tests.support.admin import create_topic
from tests.support.confluent import consumer
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.faults, pytest.mark.clients]

LEDGER = "ledger"
ACCOUNTS = 4
AT_ONCE = 10
PROTOCOLS = (FIRST_PROTOCOL, SECOND_PROTOCOL)
PATIENCE_S = 120


class Teller(threading.Thread):
    """Makes its transfers in order. A transaction has some of them, a debit and a credit for each, and
    the number of the next transfer as its group's offset.
    """

    def __init__(self, server: KorvetServer, protocol: int, transfers: int) -> None:
        super().__init__(daemon=True)
        self.server, self.protocol, self.transfers = server, protocol, transfers
        self.name = f"teller-{protocol}"
        self.done = 0
        self.troubles: Counter[str] = Counter()
        self.stopped = False

    def run(self) -> None:
        while self.done < self.transfers and not self.stopped:
            try:
                self.work()
            except Exception as error:  # noqa: BLE001 - a server that is gone shows in many ways
                self.troubles[repr(error)[:100]] += 1
                time.sleep(0.05)

    def work(self) -> None:
        """A new producer, which completes or aborts the former one's transaction, and continues after it."""
        ask = connect(self.server)
        try:
            mover = Mover(ask, LEDGER, self.protocol, self.name)
            mover.group = self.name
            assert mover.init().error_code == 0
            self.done = max(0, mover.stable())
            while self.done < self.transfers and not self.stopped:
                self.transact(mover)
        finally:
            ask.raw.socket.close()

    def transact(self, mover: Mover) -> None:
        following = min(self.done + AT_ONCE, self.transfers)
        values = [b"%s.%d" % (self.name.encode(), number) for number in range(self.done, following)]
        giver, taker = random.Random(following).sample(range(ACCOUNTS), 2)
        for half, account in ((b"-", giver), (b"+", taker)):
            assert mover.write(*(half + value for value in values), partition=account).error_code == 0
        if self.protocol < SECOND_PROTOCOL:
            assert mover.add_offsets() == 0
        assert mover.commit(following) == [0]
        assert mover.end() == 0
        self.done = following


def ledger(server: KorvetServer) -> list[bytes]:
    """The committed records of all accounts, in no order."""
    client = consumer(
        server.bootstrap, "auditor", isolation_level="read_committed", enable_partition_eof=True
    )
    try:
        client.assign([TopicPartition(LEDGER, number, OFFSET_BEGINNING) for number in range(ACCOUNTS)])
        found, ends = [], 0
        while ends < ACCOUNTS:
            message = client.poll(20)
            assert message is not None
            ends += message.error() is not None
            if message.error() is None:
                found.append(message.value())
        return sorted(found)
    finally:
        client.close()


def transfer(server: KorvetServer, transfers: int, layout: str, kills: Sequence[str]) -> None:
    create_topic(server.bootstrap, LEDGER, ACCOUNTS, {"storage.layout": layout})
    tellers = [Teller(server, protocol, transfers) for protocol in PROTOCOLS]
    try:
        for teller in tellers:
            teller.start()
        for number, kill in enumerate(kills, 1):
            goal = number * transfers // (len(kills) + 1)
            for teller in tellers:
                until(
                    lambda t=teller, goal=goal: t.done >= goal,
                    PATIENCE_S,
                    f"{teller.name}: {teller.troubles}",
                )
            KILLS[kill](server)
        for teller in tellers:
            until(lambda t=teller: not t.is_alive(), PATIENCE_S, f"{teller.name}: {teller.troubles}")
    finally:
        for teller in tellers:
            teller.stopped = True
    expected = sorted(
        b"%s%s.%d" % (half, teller.name.encode(), number)
        for half in (b"-", b"+")
        for teller in tellers
        for number in range(transfers)
    )
    until(lambda: ledger(server) == expected, PATIENCE_S, "each transfer is in the ledger, both halves, once")


@pytest.mark.parametrize(("layout", "kills"), [("record", ("korvet", "both")), ("batch", ("store",))])
def test_transfers_while_all_are_killed(
    own_korvet: Callable[..., KorvetServer], layout: str, kills: Sequence[str]
) -> None:
    transfer(own_korvet(), 400, layout, kills)


@pytest.mark.long
@pytest.mark.parametrize("layout", ["record", "batch"])
def test_transfers_while_all_are_killed_often(own_korvet: Callable[..., KorvetServer], layout: str) -> None:
    transfer(own_korvet(), 10_000, layout, random.Random(layout).choices(sorted(KILLS), k=20))
