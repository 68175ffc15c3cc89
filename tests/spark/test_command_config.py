"""Files of Kafka's client properties (--command-config): read as Java does, given on as references."""

from __future__ import annotations

import shutil
from random import Random
from typing import TYPE_CHECKING

import pytest

from korvet.spark.session.command_config import parse_properties, read_command_config
from korvet.spark.source.errors import SourceError
from tests.support.processes import run

if TYPE_CHECKING:
    from pathlib import Path

RANDOM_TEXTS = 3000
JAVA_TIMEOUT_S = 120
# Reads a text of each line, in hexadecimal, and prints its names and values.
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

TEXTS = {
    "a=1\nb: 2\nc 3\nd\n": {"a": "1", "b": "2", "c": "3", "d": ""},
    "# comment\n  ! another = one\n\n \t \na = # no comment\r\nb=\\\r\n   2": {"a": "# no comment", "b": "2"},
    "long = one,\\\n    two,\\\n\tthree\n": {"long": "one,two,three"},
    "path=C\\:\\\\keys\\\\ \nspace\\ d\\=k\\:ey = v \n": {"path": "C:\\keys\\ ", "space d=k:ey": "v "},
    "even=two\\\\\nnext=1": {"even": "two\\", "next": "1"},
    "u=\\u00e4\\uD83D\\uDE00 é😀\nt=\\t\\n\\r\\f\\q": {"u": "ä😀 é😀", "t": "\t\n\r\fq"},
    "a=1\na=2\n=empty\n:also\n": {"a": "2"},
    "end=x\\": {"end": "x"},
    "a = = b\nc\t:\f= d": {"a": "= b", "c": "= d"},
    "# a comment can't be continued \\\nb=2": {"b": "2"},
    "value=\\\n# is a value\n\\\n#none\n": {"value": "# is a value"},
}


@pytest.mark.parametrize("text", TEXTS)
def test_properties_are_read(text: str) -> None:
    assert parse_properties(text) == TEXTS[text]


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
        assert parse_properties(text) == named, repr(text)


def test_values_become_references(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        'sasl.jaas.config=x required password="hush";\nssl.keystore.key=hush\nany.thing=hush\n'
        "bootstrap.servers=h:1\ngroup.id=g\nisolation.level=read_uncommitted\nkey.deserializer=K\n"
    )
    given = read_command_config(file)
    assert "hush" not in str(given)
    assert given == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        **{
            name: f"${{korvet:{file}:{name}}}"
            for name in ("sasl.jaas.config", "ssl.keystore.key", "any.thing")
        },
        "config.providers": "korvet",
        "config.providers.korvet.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }


def test_references_of_the_file_itself_stay(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "config.providers=env\nconfig.providers.env.class=EnvVarConfigProvider\n"
        "ssl.key.password=${env:PASSWORD}\nssl.truststore.password=hush\n"
    )
    given = read_command_config(file)
    assert given["config.providers"] == "env,korvet"
    assert given["config.providers.env.class"] == "EnvVarConfigProvider"
    assert given["ssl.key.password"] == "${env:PASSWORD}"
    assert given["ssl.truststore.password"] == f"${{korvet:{file}:ssl.truststore.password}}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a=1\nb=\\u12g4\n", r"line 2: \\u needs four hexadecimal digits"),
        (b"a=\xe4\n", r"is not UTF-8 \(byte 2\): write other characters as \\uXXXX"),
        (
            b"security.protocol=TLS\n",
            "security.protocol is 'TLS', not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
    ],
)
def test_a_malformed_file_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(content)
    with pytest.raises(SourceError, match=message) as caught:
        read_command_config(file)
    assert str(caught.value).startswith(f"--command-config {file}")
    assert "\n" not in str(caught.value)


def test_a_file_that_can_not_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none\.properties: No such file or directory"):
        read_command_config(tmp_path / "none.properties")
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "c").touch()
    with pytest.raises(SourceError, match="the path of the file must not contain : and }"):
        read_command_config(folder / "c")
