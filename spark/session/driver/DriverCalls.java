package korvet.spark;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.StringReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.internal.SQLConf;
import py4j.Gateway;
import py4j.Protocol;
import py4j.ReturnObject;

/**
 * Makes calls of Java methods in the JVM of Spark's driver, by Py4J: a function from the name of a setting that has
 * the calls to the result of one of them.
 *
 * <p>The first line of the setting names that result. Each call is a line that says when to make it, and a command
 * of Py4J. Its result is the object p0, p1, ... of later commands. After a failed call, the next ones are left out.
 * The answer is a result in Py4J's form, or the classes and messages of an exception and its causes.
 */
public final class DriverCalls implements UDF1<String, String> {
    private static final String NEXT = "next";
    private static final String ON_FAILURE = "on failure";
    private static final String ALWAYS = "always";
    private static final String NEW = "i";
    private static final String END = "e";

    @Override
    public String call(String setting) throws IOException {
        BufferedReader lines = new BufferedReader(new StringReader(SQLConf.get().getConfString(setting)));
        Gateway gateway = new Gateway(null);
        String wanted = lines.readLine();
        Throwable failure = null;
        int number = 0;
        for (String when = lines.readLine(); when != null; when = lines.readLine()) {
            List<String> command = new ArrayList<>();
            for (String line = lines.readLine(); !line.equals(END); line = lines.readLine()) {
                command.add(line);
            }
            if (when.equals(ALWAYS) || when.equals(failure == null ? NEXT : ON_FAILURE)) {
                try {
                    Object result = result(gateway, command);
                    if (result != null) {
                        gateway.putObject("p" + number, result);
                    }
                } catch (Throwable thrown) {
                    failure = failure == null ? thrown : failure;
                }
            }
            number++;
        }
        if (failure != null) {
            return described(failure);
        }
        return Protocol.getOutputCommand(gateway.getReturnObject(gateway.getObject(wanted)));
    }

    private static Object result(Gateway gateway, List<String> command) throws Throwable {
        boolean isNew = command.get(0).equals(NEW);
        List<Object> arguments = new ArrayList<>();
        for (String argument : command.subList(isNew ? 2 : 3, command.size())) {
            arguments.add(Protocol.getObject(argument, gateway));
        }
        ReturnObject done = isNew
                ? gateway.invoke(command.get(1), arguments)
                : gateway.invoke(command.get(2), command.get(1), arguments);
        Object result = done.getName() == null ? done.getPrimitiveObject() : gateway.getObject(done.getName());
        if (done.isError()) {
            throw (Throwable) result;
        }
        return result;
    }

    private static String described(Throwable failure) {
        StringBuilder text = new StringBuilder();
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            text.append('\0').append(cause.getClass().getName());
            text.append('\0').append(Objects.toString(cause.getMessage(), ""));
        }
        return text.toString();
    }
}
