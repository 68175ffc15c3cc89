import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Takes records as a member of a share group, works for a moment, and accepts them, until SIGTERM. Notes them as
 * robustness/queue/journal.py describes.
 *
 * <p>Arguments: address, topic, group, records at once, ms of work, journal.
 */
public final class QueueWorker {
    private static volatile boolean isOver = false;

    private QueueWorker() {}

    private static void note(Path journal, String what, List<Long> offsets) throws IOException {
        Stream<String> words = Stream.concat(Stream.of(what), offsets.stream().map(String::valueOf));
        String line = words.collect(Collectors.joining(" ")) + "\n";
        Files.writeString(journal, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    public static void main(String[] arguments) throws Exception {
        Path journal = Path.of(arguments[5]);
        Map<String, Object> config = Map.of("bootstrap.servers", arguments[0], "group.id", arguments[2],
            "share.acknowledgement.mode", "explicit", "max.poll.records", arguments[3]);
        Thread worker = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            isOver = true;
            try {
                worker.join();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }));
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaShareConsumer<>(config, bytes, bytes)) {
            consumer.subscribe(List.of(arguments[1]));
            while (!isOver) {
                List<Long> offsets = new ArrayList<>();
                var records = consumer.poll(Duration.ofMillis(500));
                records.forEach(record -> offsets.add(record.offset()));
                if (offsets.isEmpty()) {
                    continue;
                }
                note(journal, "taken", offsets);
                Thread.sleep(Long.parseLong(arguments[4]));
                records.forEach(consumer::acknowledge);
                var outcomes = consumer.commitSync(Duration.ofSeconds(30)).values();
                if (outcomes.stream().noneMatch(error -> error.isPresent())) {
                    note(journal, "accepted", offsets);
                }
            }
        }
    }
}
