import java.io.BufferedWriter;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads one partition up to its end at the time of the start, with the default configuration.
 * Arguments: bootstrap, topic, partition, and an isolation level if it isn't the default. Prints "offset digest" per record, in the order of arrival.
 */
public final class ReadBack {
    private ReadBack() {}

    public static void main(String[] arguments) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        if (arguments.length > 3) {
            config.put("isolation.level", arguments[3]);
        }
        TopicPartition partition = new TopicPartition(arguments[1], Integer.parseInt(arguments[2]));
        Digests digests = new Digests();
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<>(config, bytes, bytes);
                var out = new PrintWriter(new BufferedWriter(new OutputStreamWriter(System.out)))) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < end) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    out.println(record.offset() + " " + digests.of(record));
                }
            }
        }
    }
}
