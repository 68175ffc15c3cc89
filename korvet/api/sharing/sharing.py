"""The share sessions of a broker, and the partitions that are in these sessions."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from korvet.api.sharing.configs import share_config
from korvet.api.sharing.counts import ShareCounts
from korvet.api.sharing.partition import SharedPartition
from korvet.api.sharing.sessions import ShareSessions
from korvet.causes import Causes
from korvet.config.features import SHARE_VERSION
from korvet.metrics.counted import Counted, shown
from korvet.redis.errors import StorageError
from korvet.slices import gathered, sliced
from korvet.supervisor import once

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from korvet.api.sharing.configs import ShareConfig
    from korvet.api.sharing.dead_letters import DeadLetters
    from korvet.api.sharing.sessions import SharedKey, ShareSession
    from korvet.config.features import Features
    from korvet.coordinator.share_changes import ShareChanges
    from korvet.coordinator.share_peers import SharePeers
    from korvet.groups.config import GroupConfig
    from korvet.log.partition_log import PartitionLog
    from korvet.redis.commands import Commands
    from korvet.topics.directory import TopicDirectory

log = logging.getLogger(__name__)
causes = Causes(log)

MOST_SHARE_SESSIONS: Final = 2_000
"""Kafka's default of group.share.max.share.sessions."""
# The pause between looks at groups: in times of the look, within bounds. A look takes
# long also while Redis does not answer.
_RESTS: Final = 19
_LEAST_REST_S, _LONGEST_REST_S = 3.0, 60.0
# Limits the partitions that a look reads at once: clients' commands wait as long.
_LOOKS_AT_ONCE: Final = 8


def rest_s(took_s: float, least_s: float = _LEAST_REST_S, longest_s: float = _LONGEST_REST_S) -> float:
    """The pause after a look at groups, of all that keep dead letters for example, that took so long."""
    return min(max(least_s, _RESTS * took_s), longest_s)


class Connection(Protocol):
    """The connection of a client."""

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call back when the client disconnects; soon if it has already."""


class Sharing(Counted):
    """What ShareFetch and ShareAcknowledge keep from one request to the next."""

    @property
    @shown("kafka_server_sharesessioncache_sharesessionscount", "Sessions of members of share groups.")
    def sessions(self) -> int:
        """The open sessions."""
        return len(self._sessions)

    @property
    @shown("kafka_server_sharesessioncache_sharepartitionscount", "Partitions of all these sessions.")
    def partitions(self) -> int:
        """The partitions of all sessions together."""
        return self._users.total()

    def __init__(
        self,
        commands: Commands,
        topics: TopicDirectory,
        groups: GroupConfig,
        features: Features,
        peers: SharePeers,
        letters: Callable[[ShareCounts], DeadLetters],
        leads: Callable[[str, int], bool],
        changes: ShareChanges,
        most_sessions: int,
    ) -> None:
        """leads(topic, partition): whether this broker leads a partition. changes: takes note of changed
        states.
        """
        super().__init__()
        self._commands = commands
        self._topics = topics
        self._groups = groups
        self._features = features
        self._peers = peers
        self._sessions = ShareSessions(most_sessions)
        # By group and key: in how many sessions a partition is, and what is known of it.
        self._users: Counter[tuple[str, SharedKey]] = Counter()
        self._partitions: dict[tuple[str, SharedKey], SharedPartition] = {}
        self.counts = ShareCounts()
        """What is counted of records."""
        self._letters = letters(self.counts)
        self._leads = leads
        self._changes = changes
        # The connections whose end closes sessions.
        self._watched: set[Connection] = set()
        # By group and member: the release of the records of a session that has ended.
        self._releases: dict[tuple[str, str], asyncio.Task[None]] = {}

    def config(self, group: str) -> ShareConfig:
        """What applies to the records of a group."""
        return share_config(self._groups, group, self._features.levels[SHARE_VERSION])

    # Sessions

    async def open(self, group: str, member: str, client: Connection) -> ShareSession:
        """Open a session in place of the member's last one; if that one has ended, after its records are
        released. The session ends with the client's connection. Raises ShareSessionError.
        """
        while (release := self._releases.get((group, member))) is not None:
            await asyncio.wait([release])
        session, former = self._sessions.open(group, member, client)
        if former is not None:
            self._leave(former, list(former.partitions))
        self._watch(client)
        return session

    def advance(self, group: str, member: str, epoch: int, client: Connection) -> ShareSession:
        """The session that a request continues. Raises ShareSessionError."""
        session = self._sessions.advance(group, member, epoch, client)
        self._watch(client)
        return session

    def update(
        self, session: ShareSession, named: Iterable[SharedKey], forgotten: Collection[SharedKey]
    ) -> None:
        """Apply what a request says of a session's partitions."""
        added = {key: None for key in named if key not in session.partitions}
        self._users.update((session.group, key) for key in added)
        left = [key for key in dict.fromkeys(forgotten) if key in session.partitions or key in added]
        session.update(added, left)
        self._leave(session, left)

    async def close(self, group: str, member: str) -> None:
        """Close a session and release its records. Raises ShareSessionError."""
        await asyncio.shield(self._begin_release(self._sessions.close(group, member)))

    def find(self, group: str, member: str) -> ShareSession:
        """The session of a member. Raises ShareSessionError."""
        return self._sessions.find(group, member)

    def _watch(self, client: Connection) -> None:
        """Close the sessions of a connection when the client is gone."""
        if client in self._watched:
            return

        def gone() -> None:
            self._watched.discard(client)
            for session in self._sessions.lose(client):
                self._begin_release(session)

        self._watched.add(client)
        client.on_disconnect(gone)

    def _begin_release(self, session: ShareSession) -> asyncio.Task[None]:
        """Release the records of a session that is closed. Returns the task, which raises nothing."""
        place = session.group, session.member
        release = self._releases[place] = once("share session", self._release(session))
        release.add_done_callback(lambda _: self._releases.pop(place))
        return release

    async def _release(self, session: ShareSession) -> None:
        config, keys = self.config(session.group), list(session.partitions)
        await gathered(self._release_in(session, key, config) for key in keys)
        self._leave(session, keys)

    async def _release_in(self, session: ShareSession, key: SharedKey, config: ShareConfig) -> None:
        partition = self.partition(session.group, key)
        if partition is None:
            return
        try:
            await partition.release(session.member, config)
        except StorageError as error:
            # Its locks end by themselves.
            name = partition.log.state.name
            causes.warn(error, "%s: the records of a share consumer are not released: %s", name, error)

    def _leave(self, session: ShareSession, keys: Iterable[SharedKey]) -> None:
        """Forget partitions that were in a session, and are in no other one."""
        for key in keys:
            place = session.group, key
            self._users[place] -= 1
            if self._users[place] <= 0:
                del self._users[place]
                partition = self._partitions.pop(place, None)
                if partition is not None:
                    partition.close()

    # Expired locks and dead letters

    async def attend(self) -> NoReturn:
        """End expired locks of members that take no further records. See to groups that keep dead letters,
        also those that only native consumers use: end their expired locks, and write letters that wait.
        """
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            known = sliced(list(self._partitions.items()))
            due = [place async for place, partition in known if partition.lock_ends.first_s <= began_s]
            looks = (self._look_in(group, self.config(group), key) for group, key in due)
            await gathered(looks, _LOOKS_AT_ONCE)
            async for group in sliced(self._groups.own.groups):
                config = self.config(group)
                if config.limits.keeps_dead:
                    await self._look(group, config)
            await asyncio.sleep(rest_s(clock() - began_s))

    async def stop(self) -> None:
        """Stop writing dead letters."""
        await self._letters.close()

    async def _look(self, group: str, config: ShareConfig) -> None:
        async for topic in sliced(self._topics.all()):
            if topic.internal or topic.storage_layout == "batch":
                continue
            keys = [
                (topic.topic_id, index)
                async for index in sliced(range(topic.partitions))
                if self._leads(topic.name, index)
            ]
            await gathered((self._look_in(group, config, key) for key in keys), _LOOKS_AT_ONCE)

    async def _look_in(self, group: str, config: ShareConfig, key: SharedKey) -> None:
        partition = self.partition(group, key)
        if partition is None:
            return
        try:
            await partition.look(config)
        except StorageError as error:
            name = partition.log.state.name
            causes.warn(error, "%s: the share group %r cannot be read: %s", name, group, error)

    # Partitions

    def partition(self, group: str, key: SharedKey) -> SharedPartition | None:
        """A group's partition; None if this broker does not lead it, or it does not exist."""
        log = self._log(key)
        place = group, key
        known = self._partitions.get(place)
        if known is not None and known.log is log and not log.closed:
            return known
        if known is not None:
            del self._partitions[place]
            known.close()
        if log is None or log.closed:
            return None
        made = SharedPartition(
            self._commands,
            log,
            group,
            self.counts,
            self._peers.is_initialised,
            self._letters.write_soon,
            self._changes,
        )
        if place in self._users:
            self._partitions[place] = made
            made.open()
        return made

    def _log(self, key: SharedKey) -> PartitionLog | None:
        topic_id, index = key
        topic = None if topic_id is None else self._topics.by_id(topic_id)
        return None if topic is None else self._topics.log_of(topic, index)
