import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.Scanner;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A producer and a consumer that do what lines of standard input say. A session begins with "connect", bootstrap, and the timeouts of
 * the producer's requests and transactions in milliseconds, and ends with "close". Each line is answered by one line: "= " and
 * a result, or the class of an exception. Before that come lines "told " with what the consumer is told of its partitions.
 */
public final class FaultSession {
    private static final Duration LEAVING = Duration.ofSeconds(1);
    private static String[] connection;
    private static KafkaProducer<String, String> producer;
    private static KafkaConsumer<String, String> consumer;

    private FaultSession() {}

    private interface Step {
        String run() throws Exception;
    }

    public static void main(String[] none) {
        var lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ");
            answer(() -> step(words));
        }
        System.exit(0);
    }

    private static void answer(Step step) {
        String result;
        try {
            result = step.run();
        } catch (ExecutionException error) {
            result = error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            result = error.getClass().getSimpleName();
        }
        System.out.println("= " + result);
    }

    private static String step(String[] words) throws Exception {
        switch (words[0]) {
            case "connect" -> connection = Arrays.copyOfRange(words, 1, words.length);
            case "close" -> close();
            case "producer" -> open(connection, Boolean.parseBoolean(words[1]), words.length > 2 ? words[2] : null);
            case "send" -> producer.send(new ProducerRecord<>(words[1], words[2])).get();
            case "begin" -> producer.beginTransaction();
            case "commit_transaction" -> producer.commitTransaction();
            case "abort_transaction" -> producer.abortTransaction();
            case "subscribe" -> subscribe(connection[0], words[1], words[2]);
            case "poll" -> {
                var values = new StringBuilder();
                consumer.poll(Duration.ofMillis(100)).forEach(record -> values.append(record.value()).append(' '));
                return values.toString().trim();
            }
            case "member" -> {
                return consumer.groupMetadata().memberId();
            }
            case "commit" -> consumer.commitSync();
            default -> throw new IllegalArgumentException(words[0]);
        }
        return "";
    }

    private static void close() {
        if (producer != null) {
            producer.close(Duration.ZERO);
            producer = null;
        }
        if (consumer != null) {
            consumer.close(CloseOptions.timeout(LEAVING));
            consumer = null;
        }
    }

    private static void open(String[] arguments, boolean idempotent, String transactionalId) {
        var config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        config.put("request.timeout.ms", arguments[1]);
        config.put("enable.idempotence", idempotent);
        if (transactionalId != null) {
            config.put("transactional.id", transactionalId);
            config.put("transaction.timeout.ms", arguments[2]);
        }
        producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
        if (transactionalId != null) {
            producer.initTransactions();
        }
    }

    private static void subscribe(String bootstrap, String group, String topic) {
        var config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", group);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", false);
        config.put("heartbeat.interval.ms", 200);
        consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                System.out.println("told revoked");
            }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                System.out.println("told assigned");
            }

            @Override
            public void onPartitionsLost(Collection<TopicPartition> partitions) {
                System.out.println("told lost");
            }
        });
    }
}
