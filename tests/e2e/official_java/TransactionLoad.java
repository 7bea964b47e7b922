import java.io.IOException;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.message.MessageViewImpl;

/**
 * Transactions for as long as somebody else disturbs the cluster.
 *
 * <p>{@code … send TOPIC RECORD STOP LANES END} and {@code … receive TOPIC GROUP RECORD STOP}
 *
 * <p>Each of the LANES has one transaction after the other. Every third is rolled back, every fifth left to the check
 * of the broker, which is answered with what the lane has decided; a half message whose send failed is rolled back then
 * and sent anew with another body. Sending ends when the file STOP is there; then there is RECORD.done, and checks are
 * answered until END is there. Lines are separated by tabs. Sent: lane, number, body, C or R for what was decided,
 * seconds since the epoch. Received: lane, number, body, offset in its queue, seconds of the acknowledgement's OK or 0,
 * seconds of the delivery.
 */
final class TransactionLoad {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Duration LEASE = Duration.ofSeconds(15);
    private static final Duration AWAIT = Duration.ofSeconds(5);
    private static final int BATCH = 16;
    private static final int RECEIVERS = 4;
    private static final int ENDS_MAX = 20;
    private static final long RETRY_PAUSE_MS = 200;
    private static final long SEND_PAUSE_MS = 100;
    private static final int FAILURES_SHOWN = 30;

    private final ClientConfiguration configuration;
    private final AtomicInteger failures = new AtomicInteger();
    private final Map<String, TransactionResolution> decided = new ConcurrentHashMap<>();

    private TransactionLoad(String endpoint) {
        configuration = ClientConfiguration.newBuilder().setEndpoints(endpoint).enableSsl(false).build();
    }

    /** Runs what the arguments say; false: they name scenarios. */
    static boolean run(String endpoint, List<String> arguments) throws Exception {
        if (arguments.size() == 6 && arguments.get(0).equals("send")) {
            new TransactionLoad(endpoint).send(arguments.get(1), Path.of(arguments.get(2)), Path.of(arguments.get(3)),
                Integer.parseInt(arguments.get(4)), Path.of(arguments.get(5)));
            return true;
        }
        if (arguments.size() == 5 && arguments.get(0).equals("receive")) {
            new TransactionLoad(endpoint).receive(arguments.get(1), arguments.get(2), Path.of(arguments.get(3)),
                Path.of(arguments.get(4)));
            return true;
        }
        return false;
    }

    private interface Start<T> {
        T run() throws Exception;
    }

    /** The official client gives up at once when it has no route. */
    private <T> T retried(Start<T> start) throws InterruptedException {
        while (true) {
            try {
                return start.run();
            } catch (Exception problem) {
                note("start", problem);
            }
        }
    }

    private void note(String what, Exception problem) throws InterruptedException {
        if (failures.incrementAndGet() <= FAILURES_SHOWN) {
            System.err.printf("%.3f %s: %s%n", seconds(), what, problem);
        }
        Thread.sleep(RETRY_PAUSE_MS);
    }

    private static double seconds() {
        return System.currentTimeMillis() / 1e3;
    }

    private static void joinAll(List<Thread> threads) throws InterruptedException {
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static PrintWriter record(Path path) throws IOException {
        return new PrintWriter(Files.newBufferedWriter(path), true);
    }

    private void send(String topic, Path path, Path stop, int lanes, Path end) throws Exception {
        PrintWriter record = record(path);
        // One attempt: what the client repeats by itself would be a second half message with the same body.
        Producer producer = retried(() -> PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics(topic).setMaxAttempts(1)
            .setTransactionChecker(view -> decided.getOrDefault(body(view), TransactionResolution.UNKNOWN)).build());
        List<Thread> threads = new ArrayList<>();
        for (int place = 0; place < lanes; place++) {
            int lane = place;
            threads.add(new Thread(() -> {
                try {
                    for (int number = 0; !Files.exists(stop); number++) {
                        one(producer, topic, record, lane, number);
                        Thread.sleep(SEND_PAUSE_MS);
                    }
                } catch (Exception problem) {
                    problem.printStackTrace();
                }
            }));
        }
        joinAll(threads);
        Files.createFile(Path.of(path + ".done"));
        while (!Files.exists(end)) {
            Thread.sleep(RETRY_PAUSE_MS);
        }
        producer.close();
    }

    private void one(Producer producer, String topic, PrintWriter record, int lane, int number) throws Exception {
        TransactionResolution resolution = number % 3 == 0 ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
        for (int attempt = 0;; attempt++) {
            String body = lane + "-" + number + "-" + attempt;
            Transaction transaction;
            try {
                transaction = producer.beginTransaction();
                producer.send(PROVIDER.newMessageBuilder().setTopic(topic)
                    .setBody(body.getBytes(StandardCharsets.UTF_8)).build(), transaction);
            } catch (Exception problem) {
                // It may be stored. Written down first, so that a delivery of it is known as wrong.
                line(record, "%d\t%d\t%s\tR\t%.3f", lane, number, body, seconds());
                decided.put(body, TransactionResolution.ROLLBACK);
                note("send", problem);
                continue;
            }
            line(record, "%d\t%d\t%s\t%s\t%.3f", lane, number, body,
                resolution == TransactionResolution.COMMIT ? "C" : "R", seconds());
            decided.put(body, resolution);
            if (number % 5 != 0) {
                end(transaction, resolution);
            }
            return;
        }
    }

    /** What cannot be ended is left to the check. */
    private void end(Transaction transaction, TransactionResolution resolution) throws InterruptedException {
        for (int attempt = 0; attempt < ENDS_MAX; attempt++) {
            try {
                if (resolution == TransactionResolution.COMMIT) {
                    transaction.commit();
                } else {
                    transaction.rollback();
                }
                return;
            } catch (Exception problem) {
                note("end", problem);
            }
        }
    }

    private void receive(String topic, String group, Path path, Path stop) throws Exception {
        PrintWriter record = record(path);
        SimpleConsumer consumer = retried(() -> PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup(group).setAwaitDuration(AWAIT)
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build());
        List<Thread> threads = new ArrayList<>();
        for (int place = 0; place < RECEIVERS; place++) {
            threads.add(new Thread(() -> {
                try {
                    while (!Files.exists(stop)) {
                        receiveOnce(consumer, record);
                    }
                } catch (InterruptedException problem) {
                    problem.printStackTrace();
                }
            }));
        }
        joinAll(threads);
        consumer.close();
    }

    private void receiveOnce(SimpleConsumer consumer, PrintWriter record) throws InterruptedException {
        List<MessageView> views;
        try {
            views = consumer.receive(BATCH, LEASE);
        } catch (Exception problem) {
            note("receive", problem);
            return;
        }
        double received = seconds();
        for (MessageView view : views) {
            double acknowledged = 0;
            try {
                consumer.ack(view);
                acknowledged = seconds();
            } catch (Exception problem) {
                note("ack", problem);
            }
            String[] parts = body(view).split("-");
            line(record, "%s\t%s\t%s\t%d\t%.3f\t%.3f", parts[0], parts[1], body(view),
                ((MessageViewImpl) view).getOffset(), acknowledged, received);
        }
    }

    private static void line(PrintWriter record, String format, Object... values) {
        // One call, so that lines of several threads do not mix.
        record.println(String.format(format, values));
    }

    private static String body(MessageView view) {
        byte[] copy = new byte[view.getBody().remaining()];
        view.getBody().duplicate().get(copy);
        return new String(copy, StandardCharsets.UTF_8);
    }
}
