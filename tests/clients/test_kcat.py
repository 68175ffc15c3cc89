"""kcat, the command-line client: lists, produces, consumes, queries offsets, joins a group."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.support.processes import run
from tests.support.records import CODECS

pytestmark = pytest.mark.clients


@pytest.fixture
def kcat(broker):
    """Runs kcat. Skips the test if it isn't installed."""
    program = shutil.which("kcat")
    if program is None:
        pytest.skip("needs kcat on PATH")

    def call(*arguments: str, stdin: bytes = b"") -> str:
        done = run([program, "-b", broker.bootstrap, *arguments], 60, stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    return call


@pytest.mark.short
def test_a_whole_session(kcat, new_topic, group):
    topic = new_topic(2)
    (listed,) = json.loads(kcat("-L", "-J", "-t", topic))["topics"]
    assert (listed["topic"], [one["partition"] for one in listed["partitions"]]) == (topic, [0, 1])
    sent = []
    for codec in CODECS:
        lines = [f"k{number}:{codec} {number} and again and again" for number in range(20)]
        sent += lines
        arguments = ["-P", "-t", topic, "-p", "0", "-K:", "-z", codec, "-H", f"codec={codec}"]
        kcat(*arguments, stdin="\n".join(lines).encode())

    reading = ("-o", "beginning", "-e", "-q", "-f", "%p %o %k:%s\\n")
    found = [line.split(" ", 2) for line in kcat("-C", "-t", topic, *reading).splitlines()]
    assert [text for _, _, text in found] == sent
    headers = kcat("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%h\\n").splitlines()
    assert headers == [f"codec={codec}" for codec in CODECS for _ in range(20)]
    offsets = [int(offset) for _, offset, _ in found]
    asked = kcat("-Q", "-t", f"{topic}:0:-1", "-t", f"{topic}:1:-1")
    assert f"{topic} [0] offset {offsets[-1] + 1}" in asked.splitlines()
    ahead = kcat("-C", "-t", topic, "-p", "0", "-o", str(offsets[33]), "-c", "1", *reading[3:])
    assert ahead.strip() == " ".join(found[33])

    grouped = ("-q", "-f", "%k:%s\\n", "-X", "auto.offset.reset=earliest")
    first = kcat("-G", group, "-c", "60", *grouped, topic).splitlines()
    # The next one continues at the offset that it committed when it left.
    rest = kcat("-G", group, "-c", "40", *grouped, topic).splitlines()
    assert first + rest == sent
