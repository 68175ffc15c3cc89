import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.HexFormat;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;

/** One digest of a record's whole content; tests/support/records.py computes the same. */
final class Digests {
    private final MessageDigest sha256;

    Digests() throws Exception {
        sha256 = MessageDigest.getInstance("SHA-256");
    }

    String of(ConsumerRecord<byte[], byte[]> record) {
        sha256.reset();
        sha256.update(ByteBuffer.allocate(8).putLong(record.timestamp()).flip());
        add(record.key());
        add(record.value());
        Header[] headers = record.headers().toArray();
        sha256.update(ByteBuffer.allocate(4).putInt(headers.length).flip());
        for (Header header : headers) {
            add(header.key().getBytes(StandardCharsets.UTF_8));
            add(header.value());
        }
        return HexFormat.of().formatHex(sha256.digest());
    }

    private void add(byte[] content) {
        sha256.update(ByteBuffer.allocate(4).putInt(content == null ? -1 : content.length).flip());
        if (content != null) {
            sha256.update(content);
        }
    }
}
