import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends one batch of records, some of them bad, and then the others again.
 * Arguments: bootstrap, topic, compression, then for each record its key ("-" for none) and its create time in ms from now,
 * as "key:ms". Prints a line for each record: index, class of the exception ("none" if the record was appended), its message.
 * Then a line for each record that was sent again.
 */
public final class BadRecords {
    private BadRecords() {}

    public static void main(String[] arguments) throws InterruptedException {
        String topic = arguments[1];
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        config.put("compression.type", arguments[2]);
        config.put("batch.size", 1 << 20);
        config.put("linger.ms", 60_000);
        List<ProducerRecord<String, String>> records = new ArrayList<>();
        long now = System.currentTimeMillis();
        for (int i = 3; i < arguments.length; i++) {
            String[] parts = arguments[i].split(":");
            String key = parts[0].equals("-") ? null : parts[0];
            records.add(new ProducerRecord<>(topic, 0, now + Long.parseLong(parts[1]), key, "value"));
        }
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            List<ProducerRecord<String, String>> left = new ArrayList<>();
            List<Exception> outcomes = send(producer, records);
            for (int i = 0; i < outcomes.size(); i++) {
                // The exception of Kafka's clients for a good record of a refused batch.
                if (outcomes.get(i) != null && outcomes.get(i).getClass().getSimpleName().equals("KafkaException")) {
                    left.add(records.get(i));
                }
            }
            send(producer, left);
        }
    }

    private static List<Exception> send(
            KafkaProducer<String, String> producer, List<ProducerRecord<String, String>> records)
            throws InterruptedException {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (var record : records) {
            sent.add(producer.send(record));
        }
        producer.flush();
        List<Exception> outcomes = new ArrayList<>();
        for (int i = 0; i < sent.size(); i++) {
            Exception outcome = null;
            try {
                sent.get(i).get();
            } catch (ExecutionException failed) {
                outcome = (Exception) failed.getCause();
            }
            outcomes.add(outcome);
            String shown = outcome == null ? "none\t" : outcome.getClass().getSimpleName() + "\t" + outcome.getMessage();
            System.out.println(i + "\t" + shown);
        }
        return outcomes;
    }
}
