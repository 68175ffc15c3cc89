"""Topic administration through librdkafka, for tests of something else."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from tests.support.polling import until


def create_topic(bootstrap: str, name: str, partitions: int, configs: dict[str, str] | None = None) -> None:
    """Create a topic and wait until Metadata shows all its partitions with a leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    request = NewTopic(name, num_partitions=partitions, replication_factor=1, config=configs or {})
    try:
        admin.create_topics([request], request_timeout=20)[name].result(timeout=30)
    except KafkaException as error:
        # The broker that was asked has left the metadata, as on a busy machine; `visible` decides.
        if error.args[0].code() != KafkaError._DESTROY_BROKER:
            raise
        again = admin.create_topics([request], request_timeout=20)[name].exception(timeout=30)
        assert again is None or again.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS, again

    def visible() -> bool:
        found = admin.list_topics(name, timeout=10).topics[name]
        leaders = [partition.leader for partition in found.partitions.values()]
        return found.error is None and len(leaders) == partitions and min(leaders) >= 0

    until(visible, 20, f"topic {name} is in Metadata")


def alter_topic(bootstrap: str, name: str, configs: dict[str, str | None]) -> None:
    """Set configs of a topic; None removes one."""
    _alter(bootstrap, ConfigResource(ConfigResource.Type.TOPIC, name), configs)


def alter_broker(bootstrap: str, node_id: int, configs: dict[str, str | None]) -> None:
    """Set dynamic settings of a broker; None removes one."""
    _alter(bootstrap, ConfigResource(ConfigResource.Type.BROKER, str(node_id)), configs)


def _alter(bootstrap: str, resource: ConfigResource, configs: dict[str, str | None]) -> None:
    for name, value in configs.items():
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        resource.add_incremental_config(ConfigEntry(name, value or "", incremental_operation=operation))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(timeout=20)
