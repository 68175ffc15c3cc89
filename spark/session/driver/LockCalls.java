package korvet.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.BooleanNode;
import com.fasterxml.jackson.databind.node.NullNode;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.OverlappingFileLockException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** Locked files on a local disk. They stay locked until they are unlocked or the JVM ends. */
final class LockCalls {
    private static final Map<String, FileChannel> LOCKED = new ConcurrentHashMap<>();

    private LockCalls() {}

    static JsonNode result(JsonNode request) throws IOException {
        String action = request.get("action").asText();
        String path = request.get("path").asText();
        return switch (action) {
            case "lock" -> BooleanNode.valueOf(lock(path));
            case "unlock" -> unlock(path);
            default -> throw new IllegalArgumentException("unknown action: " + action);
        };
    }

    /** Locks a file, created with its folder if it is missing. Returns false if it is locked already. */
    private static boolean lock(String path) throws IOException {
        Path file = Path.of(path);
        Files.createDirectories(file.getParent());
        FileChannel channel = FileChannel.open(file, StandardOpenOption.CREATE, StandardOpenOption.WRITE);
        boolean locked = false;
        try {
            locked = channel.tryLock() != null;
        } catch (OverlappingFileLockException held) {
            // Locked by this JVM.
        } finally {
            if (!locked) {
                channel.close();
            }
        }
        if (locked) {
            LOCKED.put(path, channel);
        }
        return locked;
    }

    private static JsonNode unlock(String path) throws IOException {
        FileChannel channel = LOCKED.remove(path);
        if (channel != null) {
            channel.close();
        }
        return NullNode.getInstance();
    }
}
