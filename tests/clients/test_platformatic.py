"""@platformatic/kafka: a whole session."""

from __future__ import annotations

import pytest

from tests.support.sessions import COUNT, check_session

pytestmark = pytest.mark.clients


def test_a_whole_session(broker, node, fresh):
    node.needs(20, 19)
    names = {"topic": fresh("platformatic"), "group": fresh("platformatic")}
    answer = node.run("platformatic.js", {"bootstrap": broker.bootstrap, "count": COUNT, **names})
    # Zstandard depends on the version of Node.
    assert {"none", "gzip", "snappy", "lz4"} <= set(answer["codecs"])
    check_session(answer, answer["codecs"])
