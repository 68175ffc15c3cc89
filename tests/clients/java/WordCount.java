import java.io.FileInputStream;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts words with Kafka Streams, until it is stopped.
 * Arguments: file of Streams' properties, topic of lines, topic of counts, which receives each new count of a word.
 */
public final class WordCount {
    private WordCount() {}

    public static void main(String[] arguments) throws Exception {
        Properties config = new Properties();
        try (var file = new FileInputStream(arguments[0])) {
            config.load(file);
        }
        var text = Serdes.String();
        var builder = new StreamsBuilder();
        builder.<String, String>stream(arguments[1])
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(text, text))
                .count(Materialized.as("counts"))
                .toStream()
                .to(arguments[2], Produced.with(text, Serdes.Long()));
        var streams = new KafkaStreams(builder.build(), config);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
