"""Files of Java properties: Java reads the same as korvet."""

from __future__ import annotations

import shutil
from random import Random
from typing import TYPE_CHECKING

import pytest

from korvet.properties import parse_properties
from tests.support.java_properties import TEXTS
from tests.support.processes import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.clients

RANDOM_TEXTS = 3000
JAVA_TIMEOUT_S = 120
JAVA = """
import java.io.*;
import java.util.*;

class Read {
    public static void main(String[] arguments) throws IOException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        HexFormat hex = HexFormat.of();
        for (String line; (line = lines.readLine()) != null; ) {
            Properties found = new Properties();
            found.load(new StringReader(new String(hex.parseHex(line), "UTF-16BE")));
            StringBuilder words = new StringBuilder();
            for (String name : found.stringPropertyNames())
                for (String word : List.of(name, found.getProperty(name)))
                    words.append(hex.formatHex(word.getBytes("UTF-16BE"))).append(' ');
            System.out.println(words);
        }
    }
}
"""


def test_java_reads_the_same(tmp_path: Path) -> None:
    java = shutil.which("java")
    if java is None or shutil.which("javac") is None:
        pytest.skip("needs a JDK")
    random = Random(50)
    texts = [*TEXTS]
    while len(texts) < RANDOM_TEXTS:
        text = "".join(random.choices("ab =:#!\\\\\n\n\r\t\fu0\u00e9\U0001f600", k=random.randrange(24)))
        # An escape that is malformed.
        if "\\u" not in text:
            texts.append(text)
    source = tmp_path / "Read.java"
    source.write_text(JAVA)
    lines = "".join(f"{text.encode('utf-16-be').hex()}\n" for text in texts)
    done = run([java, str(source)], JAVA_TIMEOUT_S, lines.encode())
    assert done.returncode == 0, done.stderr.decode()
    by_java = [
        [bytes.fromhex(word).decode("utf-16-be") for word in line.split(" ")[:-1]]
        for line in done.stdout.decode().splitlines()
    ]
    for text, words in zip(texts, by_java, strict=True):
        named = dict(zip(words[::2], words[1::2], strict=True))
        named.pop("", None)
        assert {name: each.value for name, each in parse_properties(text).items()} == named, repr(text)
