import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Loads the tools' common classes and the named ones, for a class data archive with which the tools start faster. */
public final class Tour {
    private Tour() {}

    public static void main(String[] arguments) throws Exception {
        for (String name : arguments) {
            Class.forName(name);
        }
        for (ApiKeys key : ApiKeys.clientApis()) {
            key.messageType.newRequest();
            key.messageType.newResponse();
        }
        Map<String, Object> config = Map.of("bootstrap.servers", "127.0.0.1:1", "group.id", "tour");
        Admin.create(config).close();
        var reading = new ByteArrayDeserializer();
        new KafkaConsumer<>(config, reading, reading).close();
        var writing = new ByteArraySerializer();
        new KafkaProducer<>(config, writing, writing).close();
    }
}
