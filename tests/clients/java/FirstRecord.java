import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Measures how long a new group waits for its first record, with the default configuration.
 * Arguments: bootstrap, topic, then group names. Prints the milliseconds from subscribe to the first record, one line per group.
 */
public final class FirstRecord {
    private FirstRecord() {}

    public static void main(String[] arguments) {
        var bytes = new ByteArrayDeserializer();
        for (int i = 2; i < arguments.length; i++) {
            Properties config = new Properties();
            config.put("bootstrap.servers", arguments[0]);
            config.put("group.id", arguments[i]);
            config.put("auto.offset.reset", "earliest");
            try (var consumer = new KafkaConsumer<>(config, bytes, bytes)) {
                long start = System.nanoTime();
                consumer.subscribe(List.of(arguments[1]));
                ConsumerRecords<byte[], byte[]> records = ConsumerRecords.empty();
                while (records.isEmpty()) {
                    records = consumer.poll(Duration.ofSeconds(10));
                }
                System.out.println((System.nanoTime() - start) / 1_000_000);
            }
        }
    }
}
