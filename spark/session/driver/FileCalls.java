package korvet.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.BooleanNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.TextNode;
import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.spark.sql.classic.SparkSession;

/** Files and folders on any of Hadoop's file systems, with the settings of the session. */
final class FileCalls {
    private FileCalls() {}

    static JsonNode result(JsonNode request) throws Exception {
        String action = request.get("action").asText();
        String location = request.get("path").asText();
        Path path = action.equals("unescape") ? new Path(new URI(location)) : new Path(location);
        FileSystem system = systemOf(path);
        return switch (action) {
            case "unescape", "qualify" -> TextNode.valueOf(system.makeQualified(path).toString());
            case "exists" -> BooleanNode.valueOf(system.exists(path));
            case "delete" -> BooleanNode.valueOf(system.delete(path, true));
            case "rename" -> BooleanNode.valueOf(system.rename(path, new Path(request.get("target").asText())));
            case "read" -> TextNode.valueOf(read(system, path));
            case "create" -> BooleanNode.valueOf(
                    create(system, path, new Path(request.get("scratch").asText()), request.get("text").asText()));
            case "list" -> list(system, path);
            default -> throw new IllegalArgumentException("unknown action: " + action);
        };
    }

    static FileSystem systemOf(Path path) throws IOException {
        return path.getFileSystem(SparkSession.active().sessionState().newHadoopConf());
    }

    private static String read(FileSystem system, Path path) throws IOException {
        try (FSDataInputStream stream = system.open(path)) {
            return new String(stream.readAllBytes(), StandardCharsets.UTF_8);
        }
    }

    /** Creates a file under another name and renames it. False if the path is used, or the file system refuses. */
    private static boolean create(FileSystem system, Path path, Path scratch, String text) throws IOException {
        try (FSDataOutputStream stream = system.create(scratch)) {
            stream.write(text.getBytes(StandardCharsets.UTF_8));
        }
        if (!system.exists(path) && system.rename(scratch, path)) {
            return true;
        }
        system.delete(scratch, false);
        return false;
    }

    /** The files in a folder at any depth, hidden ones too, as pairs of URI and path inside the folder. */
    private static JsonNode list(FileSystem system, Path folder) throws IOException {
        ArrayNode found = JsonNodeFactory.instance.arrayNode();
        if (!system.exists(folder)) {
            return found;
        }
        String root = system.makeQualified(folder).toString();
        RemoteIterator<LocatedFileStatus> files = system.listFiles(folder, true);
        while (files.hasNext()) {
            String uri = files.next().getPath().toString();
            found.addArray().add(uri).add(uri.startsWith(root) ? uri.substring(root.length()) : uri);
        }
        return found;
    }
}
