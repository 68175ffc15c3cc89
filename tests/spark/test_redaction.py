"""No output contains the password of a URL, in any form that databases and stores accept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from korvet.spark.export.checkpoint import IDENTITY, claimed
from korvet.spark.export.target import ExportError, Target
from korvet.spark.session.folders import Folder
from korvet.spark.session.redaction import redacted

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

# Each password contains "hush", and nothing else does.
URLS = [
    "jdbc:postgresql://ada:hush@db:5432/shop",
    "jdbc:postgresql://db/shop?user=ada&password=hush&ssl=true",
    "jdbc:postgresql://db/shop?password=hush",
    "jdbc:postgresql://db/shop?PASSWORD=hush,hush",
    "jdbc:mysql://ada:hu@sh/hush@db/shop",
    "jdbc:mysql://address=(host=db)(user=ada)(password=hush)/shop",
    "jdbc:sqlserver://db;user=ada;password=hush;encrypt=true",
    "jdbc:sqlserver://db;user=ada;password={hu;sh}}hush};encrypt=true",
    "jdbc:sqlserver://db;user=ada;pwd=hush",
    "jdbc:sqlserver://db;trustStorePassword=hush;keyVaultProviderClientKey=x;accessToken=hush",
    "jdbc:oracle:thin:ada/hush@//db:1521/shop",
    'jdbc:oracle:thin:ada/"hu@sh"@db:1521:shop',
    "jdbc:derby:/data/db;create=true;user=ada;password=hush",
    "jdbc:h2:/data/db;PASSWORD=hush",
    "jdbc:databricks://db:443;PWD=hush",
    "jdbc:snowflake://db/?user=ada&private_key_pwd=hush&token=hush",
    "s3a://AKIA:hush@bucket/folder",
    "https://account.blob.core.windows.net/c?sv=1&sig=hush",
    "https://bucket.s3.amazonaws.com/f?X-Amz-Signature=hush&X-Amz-Security-Token=hush",
    "redis://:hush@redis:6379/0",
    "rediss://ada:hush@redis:6379/0?password=hush",
]


@pytest.mark.parametrize("url", URLS)
def test_no_password_is_left(url: str) -> None:
    for text in (url, f"no connection to {url} for ada", f"({url})"):
        assert "hush" not in redacted(text)
        assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "jdbc:postgresql://db:5432/shop?user=ada&ssl=true",
        "hdfs://name:8020/lake/orders",
        "s3a://bucket/folder/user=ada/part-0",
        "abfss://container@account.dfs.core.windows.net/lake",
        "the folder /data/a@b is not there",
        "Redis refuses the user or the password: WRONGPASS",
    ],
)
def test_what_is_no_password_stays(text: str) -> None:
    assert redacted(text) == text


def test_a_checkpoint_notes_no_password(spark: SparkSession, tmp_path: Path) -> None:
    what = f"orders to {Target('jdbc:derby:db;password=hush', 'jdbc', table='t').name}"
    folder = Folder(spark, str(tmp_path / "checkpoint"))
    fresh: list[bool] = []
    with claimed(folder, what, fresh.append) as first:
        assert fresh == [True]
    file = tmp_path / "checkpoint" / IDENTITY
    noted = file.read_text()
    assert "hush" not in noted
    # A checkpoint that contains the password still works.
    file.write_text(noted.replace("***", "hush"))
    file.with_name(f".{IDENTITY}.crc").unlink()
    with claimed(folder, what, fresh.append) as again:
        assert again.export_id == first.export_id
    assert fresh == [True, False]


@pytest.mark.parametrize("url", [url for url in URLS if url.startswith("jdbc:")])
def test_a_target_does_not_tell_its_password(url: str) -> None:
    target = Target(url, "jdbc", table="t")
    assert "hush" not in target.name
    assert "hush" not in repr(target)
    with pytest.raises(ExportError) as caught:
        Target(url.removeprefix("jdbc:"), "jdbc", table="t")
    assert "hush" not in str(caught.value)
    with pytest.raises(ExportError) as caught:
        Target(url, "parquet", table="t")
    assert "hush" not in str(caught.value)
