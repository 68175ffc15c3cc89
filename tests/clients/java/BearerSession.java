import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A producer and a consumer that log in with tokens of an OpenID provider.
 * Arguments: bootstrap, URL of tokens, user, topic, milliseconds. Sends records for that time over the same connections, reads them
 * all, and prints their number; or prints the class and the message of the error that refuses it.
 */
public final class BearerSession {
    private BearerSession() {}

    public static void main(String[] arguments) throws InterruptedException {
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", arguments[1]);
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        config.put("security.protocol", "SASL_PLAINTEXT");
        config.put("sasl.mechanism", "OAUTHBEARER");
        config.put("sasl.oauthbearer.token.endpoint.url", arguments[1]);
        config.put("sasl.login.callback.handler.class", "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler");
        config.put("sasl.jaas.config", "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId=\""
            + arguments[2] + "\" clientSecret=\"secret\" extension_traceId=\"t1\";");
        // By default, tokens of less than a minute are not refreshed, and others at 80 % of their life.
        config.put("sasl.login.refresh.window.factor", "0.5");
        config.put("sasl.login.refresh.min.period.seconds", "0");
        config.put("sasl.login.refresh.buffer.seconds", "0");
        config.put("group.id", arguments[3]);
        config.put("auto.offset.reset", "earliest");
        var written = new StringSerializer();
        var read = new StringDeserializer();
        Set<String> sent = new HashSet<>();
        try (var producer = new KafkaProducer<>(config, written, written); var consumer = new KafkaConsumer<>(config, read, read)) {
            consumer.subscribe(List.of(arguments[3]));
            long end = System.nanoTime() + Long.parseLong(arguments[4]) * 1_000_000;
            Set<String> found = new HashSet<>();
            do {
                String value = Integer.toString(sent.size());
                producer.send(new ProducerRecord<>(arguments[3], value)).get();
                sent.add(value);
                consumer.poll(Duration.ofMillis(50)).forEach(record -> found.add(record.value()));
            } while (System.nanoTime() < end);
            while (!found.equals(sent)) {
                consumer.poll(Duration.ofSeconds(1)).forEach(record -> found.add(record.value()));
            }
            System.out.println(found.size());
        } catch (ExecutionException error) {
            System.out.println(error.getCause().getClass().getSimpleName() + ": " + error.getCause().getMessage());
        }
    }
}
