package korvet.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.classic.SparkSession;

/**
 * What has no statement in SQL, done in the JVM of Spark's driver: a function from the name of a setting that
 * has a request to an answer, both JSON. An answer has a "result", or a "failure" with its causes, outermost first.
 */
public final class DriverCalls implements UDF1<String, String> {
    private static final ObjectMapper JSON = new ObjectMapper();

    @Override
    public String call(String setting) throws Exception {
        JsonNode request = JSON.readTree(SparkSession.active().conf().get(setting));
        ObjectNode answer = JSON.createObjectNode();
        try {
            answer.set("result", result(request));
        } catch (Exception | LinkageError failure) {
            ArrayNode causes = answer.putArray("failure");
            for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
                describe(causes.addObject(), cause);
            }
        }
        return JSON.writeValueAsString(answer);
    }

    private static JsonNode result(JsonNode request) throws Exception {
        String of = request.get("of").asText();
        return switch (of) {
            case "file" -> FileCalls.result(request);
            case "database" -> DatabaseCalls.result(request);
            default -> throw new IllegalArgumentException("unknown call: " + of);
        };
    }

    private static void describe(ObjectNode described, Throwable cause) {
        ArrayNode classes = described.putArray("classes");
        for (Class<?> kind = cause.getClass(); kind != Object.class; kind = kind.getSuperclass()) {
            classes.add(kind.getName());
        }
        described.put("message", cause.getMessage());
    }
}
