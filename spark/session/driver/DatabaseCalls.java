package korvet.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.BooleanNode;
import com.fasterxml.jackson.databind.node.IntNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.LongNode;
import com.fasterxml.jackson.databind.node.NullNode;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.StringJoiner;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.execution.datasources.jdbc.JdbcOptionsInWrite;
import org.apache.spark.sql.jdbc.JdbcDialect;
import org.apache.spark.sql.jdbc.JdbcDialects;

/** Steps in one transaction of a database, over a connection that Spark opens as for its JDBC writer. */
final class DatabaseCalls {
    private DatabaseCalls() {}

    /** Connects, takes all steps, and commits. A failed step rolls back those before it. */
    static JsonNode result(JsonNode request) throws SQLException {
        Map<String, String> options = options(request);
        JdbcDialect dialect = JdbcDialects.get(options.get("url"));
        try (Connection connection = connected(dialect, options)) {
            connection.setAutoCommit(false);
            try {
                ArrayNode results = JsonNodeFactory.instance.arrayNode();
                for (JsonNode step : request.get("steps")) {
                    results.add(result(connection, dialect, step));
                }
                connection.commit();
                return results;
            } catch (SQLException | RuntimeException failure) {
                connection.rollback();
                throw failure;
            }
        }
    }

    /** There is no connection; the cause says why. */
    static final class NoConnection extends SQLException {
        NoConnection(Throwable cause) {
            super(cause.getMessage(), cause);
        }
    }

    private static Map<String, String> options(JsonNode request) {
        JsonNode given = request.get("options");
        Map<String, String> options = new HashMap<>();
        for (Iterator<String> names = given.fieldNames(); names.hasNext(); ) {
            String name = names.next();
            options.put(name, given.get(name).asText());
        }
        return options;
    }

    private static Connection connected(JdbcDialect dialect, Map<String, String> options)
            throws NoConnection {
        try {
            JdbcOptionsInWrite settings = new JdbcOptionsInWrite(PythonUtils.toScalaMap(options));
            return dialect.createConnectionFactory(settings).apply(-1);
        } catch (Exception failure) {
            throw new NoConnection(failure);
        }
    }

    private static JsonNode result(Connection connection, JdbcDialect dialect, JsonNode step)
            throws SQLException {
        String action = step.get(0).asText();
        String text = step.get(1).asText();
        return switch (action) {
            case "update" -> update(connection, text);
            case "change" -> change(connection, text, step.get(2).asText());
            case "number" -> number(connection, text);
            case "exists" -> exists(connection, dialect.getTableExistsQuery(text));
            case "copy" -> update(connection, copy(dialect, text, step.get(2).asText(), step.get(3)));
            default -> throw new IllegalArgumentException("unknown step: " + action);
        };
    }

    private static JsonNode update(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            return IntNode.valueOf(statement.executeUpdate(sql));
        }
    }

    /** An update that must change a row; `failure` says why there is none. */
    private static JsonNode change(Connection connection, String sql, String failure) throws SQLException {
        JsonNode changed = update(connection, sql);
        if (changed.asInt() == 0) {
            throw new SQLException(failure);
        }
        return changed;
    }

    /** The number in the first row; null without a row. */
    private static JsonNode number(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement(); ResultSet rows = statement.executeQuery(sql)) {
            return rows.next() ? LongNode.valueOf(rows.getLong(1)) : NullNode.getInstance();
        }
    }

    private static JsonNode exists(Connection connection, String query) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            try {
                statement.executeQuery(query).close();
            } catch (SQLException missing) {
                return BooleanNode.FALSE;
            }
            return BooleanNode.TRUE;
        }
    }

    /** The statement that copies columns from one table to another. */
    private static String copy(JdbcDialect dialect, String from, String to, JsonNode columns) {
        StringJoiner names = new StringJoiner(", ");
        for (JsonNode column : columns) {
            names.add(dialect.quoteIdentifier(column.asText()));
        }
        return "INSERT INTO " + to + " (" + names + ") SELECT " + names + " FROM " + from;
    }
}
