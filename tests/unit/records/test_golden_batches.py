"""Record batches that real clients and a real broker sent to each other, in all five codecs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kafka.record.default_records import DefaultRecordBatch

from korvet.records.compression import compress, decompress
from tests.unit.records.forms import FORMS, Reader, Record, fetched, read_back, stored, xrange_reply

GOLDEN = Path(__file__).parents[2] / "data" / "wire" / "record_batches.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


def test_every_codec_is_there_from_several_writers() -> None:
    written = {(row["capture"].split("-")[0], row["codec"]) for row in ROWS if row["direction"] == "request"}
    assert {codec for _, codec in written} == {0, 1, 2, 3, 4}
    assert {writer for writer, _ in written} >= {"librdkafka", "aiokafka", "kafkajs", "java", "kafka"}


@pytest.mark.parametrize("form", FORMS, ids=["installed", "beside cython", "without cython"])
def test_golden_batches_come_back_as_they_were(form: Any) -> None:
    for row in ROWS:
        data = bytes.fromhex(row["hex"])
        header = form.parse_batch(data, 0)
        assert (header.size, header.codec) == (len(data), row["codec"])
        section = decompress(header.codec, data[61:], 1 << 20)
        reader = Reader(section)
        records: list[Record] = [
            reader.record(header.base_timestamp_ms)[1] for _ in range(header.record_count)
        ]
        if header.codec == 0:
            check_against_a_client(data, records)
        arguments = form.encode_append(data, 0, header, section if header.codec else None, True)
        assert arguments.max_timestamp_ms == header.max_timestamp_ms
        entries = stored(arguments, 5 << 30)
        back = [record for _, record in read_back(fetched(form, xrange_reply(entries)).data)]
        assert back == records
        assert decompress(header.codec, compress(header.codec, section), len(section)) == section


def check_against_a_client(data: bytes, records: list[Record]) -> None:
    batch = DefaultRecordBatch(data)
    if batch.is_control_batch:
        return
    theirs = [
        (r.key, r.value, r.timestamp, tuple((name.encode(), value) for name, value in r.headers))
        for r in batch
    ]
    assert theirs == [tuple(record) for record in records]
