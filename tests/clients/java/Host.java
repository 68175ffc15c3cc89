import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs one program after the other, each with standard streams and an exit status of its own.
 * A request on standard input: the number of words, the words, and what the program reads. Words: a class and its arguments.
 * The answer: the exit status, then the output and the errors. Numbers have four bytes, which also precede each word and stream.
 */
public final class Host {
    private Host() {}

    public static void main(String[] none) throws Exception {
        var requests = new DataInputStream(System.in);
        var answers = new DataOutputStream(System.out);
        while (true) {
            String[] words;
            try {
                words = new String[requests.readInt()];
            } catch (EOFException end) {
                Runtime.getRuntime().halt(0);
                return;
            }
            for (int i = 0; i < words.length; i++) {
                words[i] = new String(read(requests), StandardCharsets.UTF_8);
            }
            System.setIn(new ByteArrayInputStream(read(requests)));
            var output = new ByteArrayOutputStream();
            var errors = new ByteArrayOutputStream();
            System.setOut(new PrintStream(output, true));
            System.setErr(new PrintStream(errors, true));
            answers.writeInt(status(words));
            System.out.flush();
            write(answers, output.toByteArray());
            write(answers, errors.toByteArray());
            answers.flush();
        }
    }

    private static int status(String[] words) throws Exception {
        var ended = new CompletableFuture<Integer>();
        var hooks = new ConcurrentLinkedQueue<Runnable>();
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        Exit.setExitProcedure((status, message) -> end(ended, status));
        Exit.setHaltProcedure((status, message) -> end(ended, status));
        var program = new Thread(() -> ended.complete(run(words)), "main");
        program.setDaemon(true);
        program.start();
        int status = ended.get();
        hooks.forEach(Runnable::run);
        return status;
    }

    /** As after a real exit, the thread does nothing more. */
    private static void end(CompletableFuture<Integer> ended, int status) {
        ended.complete(status);
        while (true) {
            try {
                Thread.sleep(Long.MAX_VALUE);
            } catch (InterruptedException again) {
                continue;
            }
        }
    }

    private static int run(String[] words) {
        try {
            var main = Class.forName(words[0]).getMethod("main", String[].class);
            main.invoke(null, (Object) Arrays.copyOfRange(words, 1, words.length));
            return 0;
        } catch (InvocationTargetException failed) {
            System.err.print("Exception in thread \"main\" ");
            failed.getCause().printStackTrace();
        } catch (ReflectiveOperationException missing) {
            missing.printStackTrace();
        }
        return 1;
    }

    private static byte[] read(DataInputStream requests) throws IOException {
        return requests.readNBytes(requests.readInt());
    }

    private static void write(DataOutputStream answers, byte[] stream) throws IOException {
        answers.writeInt(stream.length);
        answers.write(stream);
    }
}
