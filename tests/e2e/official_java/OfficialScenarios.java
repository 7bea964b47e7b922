import java.io.BufferedReader;
import java.io.Closeable;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.message.MessageViewImpl;

/**
 * Runs the client API's conformance scenarios with the official Java client, unchanged.
 *
 * <p>{@code java OfficialScenarios --endpoint 127.0.0.1:8081 [scenario ...]}
 *
 * <p>Scenarios named as arguments run at the same time. Without any, names are read from standard input, one a line,
 * until it ends; a line "continue NAME" lets a scenario go on that said it waits. Each scenario prints one JSON line.
 * Arguments that begin with send or receive are those of TransactionLoad.
 */
public final class OfficialScenarios {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    // Longer than the client's 3 s: on a busy machine a send that is tried again is stored twice.
    private static final Duration REQUEST_TIMEOUT = Duration.ofSeconds(10);
    private static final Duration AWAIT = Duration.ofSeconds(5);
    private static final Duration LIMIT = Duration.ofSeconds(60);
    private static final Duration LONG_LEASE = Duration.ofSeconds(60);
    private static final Duration SHORT_LEASE = Duration.ofSeconds(10);
    private static final Map<String, Semaphore> CONTINUED = new ConcurrentHashMap<>();
    private static String endpoint = "127.0.0.1:8081";

    /** Names are those of tests/e2e/scenarios.py; each scenario's topic and group are called as the scenario. */
    private interface Scenario {
        String run(String name) throws Exception;
    }

    private static final Map<String, Scenario> SCENARIOS = new TreeMap<>();

    static {
        SCENARIOS.put("start_stop", OfficialScenarios::startStop);
        SCENARIOS.put("round_trip", OfficialScenarios::roundTrip);
        SCENARIOS.put("acknowledged_once", OfficialScenarios::acknowledgedOnce);
        SCENARIOS.put("lease_end_redelivers", OfficialScenarios::leaseEndRedelivers);
        SCENARIOS.put("changed_lease", OfficialScenarios::changedLease);
        SCENARIOS.put("given_back_at_once", OfficialScenarios::givenBackAtOnce);
        SCENARIOS.put("empty_receive", OfficialScenarios::emptyReceive);
        SCENARIOS.put("receive_wakes", OfficialScenarios::receiveWakes);
        SCENARIOS.put("tag_filter", OfficialScenarios::tagFilter);
        SCENARIOS.put("transaction_ends", OfficialScenarios::transactionEnds);
        SCENARIOS.put("transaction_asked_after", OfficialScenarios::transactionAskedAfter);
        SCENARIOS.put("fifo_order", OfficialScenarios::fifoOrder);
        SCENARIOS.put("shared_group", OfficialScenarios::sharedGroup);
        SCENARIOS.put("concurrent_sends", OfficialScenarios::concurrentSends);
        SCENARIOS.put("push_all", OfficialScenarios::pushAll);
        SCENARIOS.put("lite_push", OfficialScenarios::litePush);
        SCENARIOS.put("push_retry", OfficialScenarios::pushRetry);
        SCENARIOS.put("push_dead_letter", OfficialScenarios::pushDeadLetter);
        SCENARIOS.put("fifo_retry_blocks", OfficialScenarios::fifoRetryBlocks);
        SCENARIOS.put("fifo_dead_letter", OfficialScenarios::fifoDeadLetter);
        SCENARIOS.put("large_body", OfficialScenarios::largeBody);
        SCENARIOS.put("refused_messages", OfficialScenarios::refusedMessages);
        SCENARIOS.put("unknown_topic", OfficialScenarios::unknownTopic);
        SCENARIOS.put("delayed", OfficialScenarios::delayed);
        SCENARIOS.put("recalled", OfficialScenarios::recalled);
        SCENARIOS.put("client_restart", OfficialScenarios::clientRestart);
        SCENARIOS.put("told_by_the_operator", OfficialScenarios::toldByTheOperator);
        SCENARIOS.put("master_restart", OfficialScenarios::masterRestart);
        SCENARIOS.put("slow_handler", OfficialScenarios::slowHandler);
        SCENARIOS.put("held", OfficialScenarios::held);
        SCENARIOS.put("taken_over", OfficialScenarios::takenOver);
        SCENARIOS.put("one_queue", OfficialScenarios::oneQueue);
        SCENARIOS.put("change_of_master", OfficialScenarios::changeOfMaster);
        SCENARIOS.put("dead_master", OfficialScenarios::deadMaster);
        SCENARIOS.put("no_slave", OfficialScenarios::noSlave);
    }

    private OfficialScenarios() {
    }

    public static void main(String[] arguments) throws Exception {
        List<Thread> running = new ArrayList<>();
        SCENARIOS.keySet().forEach(name -> CONTINUED.put(name, new Semaphore(0)));
        List<String> names = new ArrayList<>();
        for (int place = 0; place < arguments.length; place++) {
            if (arguments[place].equals("--endpoint")) {
                endpoint = arguments[++place];
            } else {
                names.add(arguments[place]);
            }
        }
        if (TransactionLoad.run(endpoint, names)) {
            System.exit(0);
        }
        for (String name : names) {
            running.add(start(name));
        }
        if (names.isEmpty()) {
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if (line.startsWith("continue ")) {
                    CONTINUED.get(line.substring("continue ".length()).trim()).release();
                } else if (!line.isBlank()) {
                    running.add(start(line.trim()));
                }
            }
        }
        for (Thread thread : running) {
            thread.join();
        }
        System.exit(0);
    }

    private static Thread start(String name) {
        Thread thread = new Thread(() -> {
            long started = System.nanoTime();
            try {
                expect(SCENARIOS.containsKey(name), "no such scenario");
                report(name, true, SCENARIOS.get(name).run(name), started);
            } catch (Throwable problem) {
                report(name, false, problem.toString(), started);
                problem.printStackTrace();
            }
        }, name);
        thread.start();
        return thread;
    }

    private static void report(String name, boolean ok, String detail, long started) {
        print(String.format("{\"scenario\": %s, \"ok\": %s, \"detail\": %s, \"seconds\": %.3f}",
            json(name), ok, json(detail), secondsSince(started)));
    }

    private static synchronized void print(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static String json(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each == '"' || each == '\\') {
                quoted.append('\\').append(each);
            } else if (each < ' ' || each > '~') {
                quoted.append(String.format("\\u%04x", (int) each));
            } else {
                quoted.append(each);
            }
        }
        return quoted.append('"').toString();
    }

    /** Tells the starter that the scenario waits, and returns when it may go on. */
    private static void waitForContinue(String name) throws InterruptedException {
        print(String.format("{\"scenario\": %s, \"waits\": true}", json(name)));
        CONTINUED.get(name).acquire();
    }

    private static double secondsSince(long started) {
        return (System.nanoTime() - started) / 1e9;
    }

    private static void expect(boolean holds, String what, Object... values) {
        if (!holds) {
            throw new AssertionError(String.format(what, values));
        }
    }

    private static void waitUntil(String what, BooleanSupplier holds) throws InterruptedException {
        long started = System.nanoTime();
        while (!holds.getAsBoolean()) {
            expect(secondsSince(started) < LIMIT.getSeconds(), "not within %s: %s", LIMIT, what);
            Thread.sleep(20);
        }
    }

    // Clients.

    private static ClientConfiguration configuration() {
        return ClientConfiguration.newBuilder().setEndpoints(endpoint).enableSsl(false)
            .setRequestTimeout(REQUEST_TIMEOUT).setCredentialProvider(new StaticSessionCredentialsProvider("access-key", "secret-key")).build();
    }

    private static Producer producer(String... topics) throws ClientException {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration()).setTopics(topics).build();
    }

    private static SimpleConsumer simpleConsumer(String topic, String group, FilterExpression filter)
        throws ClientException {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration()).setConsumerGroup(group)
            .setAwaitDuration(AWAIT).setSubscriptionExpressions(Collections.singletonMap(topic, filter)).build();
    }

    private static SimpleConsumer simpleConsumer(String topic, String group) throws ClientException {
        return simpleConsumer(topic, group, FilterExpression.SUB_ALL);
    }

    private static PushConsumer pushConsumer(String topic, String group, Function<MessageView, ConsumeResult> handler)
        throws ClientException {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration()).setConsumerGroup(group)
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(view -> body(view).equals(WAKE) ? ConsumeResult.SUCCESS : handler.apply(view)).build();
    }

    private static void close(Closeable... clients) throws IOException {
        for (Closeable client : clients) {
            client.close();
        }
    }

    /** Stops a push consumer, which waits for the end of its 20 s polls; a message ends them sooner. */
    private static void closePush(PushConsumer push, Producer producer, String topic, String... groups)
        throws Exception {
        Thread waker = new Thread(() -> {
            try {
                Thread.sleep(500);
                if (groups.length == 0) {
                    send(producer, message(topic, WAKE));
                }
                for (String group : groups) {
                    send(producer, message(topic, WAKE).setMessageGroup(group));
                }
            } catch (Exception problem) {
                problem.printStackTrace();
            }
        });
        waker.start();
        close(push);
        waker.join();
    }

    // Messages.

    /** Body of a message that only ends a poll; handlers take it and leave it out. */
    private static final String WAKE = "wake";

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] bytes(ByteBuffer buffer) {
        byte[] copy = new byte[buffer.remaining()];
        buffer.duplicate().get(copy);
        return copy;
    }

    private static String body(MessageView view) {
        return new String(bytes(view.getBody()), StandardCharsets.UTF_8);
    }

    private static String id(MessageView view) {
        return view.getMessageId().toString();
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(bytes(body));
    }

    private static String send(Producer producer, MessageBuilder message) throws ClientException {
        return producer.send(message.build()).getMessageId().toString();
    }

    /** Sends numbered messages, at most `inflight` at once, and gives their ids. */
    private static Set<String> sendMany(Producer producer, String topic, int count, int inflight) throws Exception {
        Semaphore room = new Semaphore(inflight);
        List<CompletableFuture<SendReceipt>> sends = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            room.acquire();
            CompletableFuture<SendReceipt> send = producer.sendAsync(message(topic, "body " + number).build());
            sends.add(send);
            send.whenComplete((receipt, problem) -> room.release());
        }
        Set<String> ids = new HashSet<>();
        for (CompletableFuture<SendReceipt> send : sends) {
            ids.add(send.get().getMessageId().toString());
        }
        expect(ids.size() == count, "%d ids of %d messages", ids.size(), count);
        return ids;
    }

    private static Map<String, MessageView> receiveSome(SimpleConsumer consumer, int count) throws Exception {
        Map<String, MessageView> found = new HashMap<>();
        long started = System.nanoTime();
        while (found.size() < count) {
            expect(secondsSince(started) < LIMIT.getSeconds(), "%d of %d messages", found.size(), count);
            for (MessageView view : consumer.receive(32, LONG_LEASE)) {
                consumer.ack(view);
                expect(found.put(id(view), view) == null, "message %s twice", id(view));
            }
        }
        return found;
    }

    private static MessageView receiveOne(SimpleConsumer consumer, Duration lease) throws Exception {
        long started = System.nanoTime();
        while (true) {
            List<MessageView> views = consumer.receive(1, lease);
            if (!views.isEmpty()) {
                return views.get(0);
            }
            expect(secondsSince(started) < LIMIT.getSeconds(), "no message within %s", LIMIT);
        }
    }

    private static String problemOf(Callable action) throws Exception {
        try {
            action.call();
        } catch (ClientException | IllegalArgumentException | IllegalStateException | ExecutionException problem) {
            StringBuilder texts = new StringBuilder();
            for (Throwable each = problem; each != null; each = each.getCause()) {
                texts.append(each).append("; ");
            }
            return texts.toString();
        }
        return "";
    }

    private interface Callable {
        void call() throws Exception;
    }

    // Scenarios.

    /** A push consumer stopped within its first second may begin a poll after its goodbye. */
    private static String startStop(String name) throws Exception {
        Producer producer = producer(name);
        close(simpleConsumer(name, name));
        PushConsumer push = pushConsumer(name, name + "-push", view -> ConsumeResult.SUCCESS);
        Thread.sleep(3000);
        closePush(push, producer, name);
        close(producer);
        return "";
    }

    private static String roundTrip(String name) throws Exception {
        Producer producer = producer(name);
        Map<String, Integer> sent = new HashMap<>();
        for (int number = 0; number < 100; number++) {
            sent.put(send(producer, message(name, "body " + number + " grün").setTag("tag-" + number % 3)
                .setKeys("key-" + number, "second-key").addProperty("number", "" + number)
                .addProperty("größe", "weiß")), number);
        }
        SimpleConsumer consumer = simpleConsumer(name, name);
        Map<String, MessageView> found = receiveSome(consumer, 100);
        expect(found.keySet().equals(sent.keySet()), "other messages than those sent");
        for (Map.Entry<String, Integer> each : sent.entrySet()) {
            int number = each.getValue();
            MessageView view = found.get(each.getKey());
            expect(body(view).equals("body " + number + " grün"), "body %s", body(view));
            expect(view.getTag().orElse("").equals("tag-" + number % 3), "tag %s", view.getTag());
            List<String> keys = new ArrayList<>(view.getKeys());
            Collections.sort(keys);
            expect(keys.equals(Arrays.asList("key-" + number, "second-key")), "keys %s", keys);
            expect(view.getProperties().equals(Map.of("number", "" + number, "größe", "weiß")), "properties %s",
                view.getProperties());
            expect(view.getDeliveryAttempt() == 1, "attempt %d", view.getDeliveryAttempt());
            expect(view.getTopic().equals(name), "topic %s", view.getTopic());
            expect(!view.getBornHost().isEmpty(), "no born host");
            expect(Math.abs(System.currentTimeMillis() - view.getBornTimestamp()) < 300_000, "born %d",
                view.getBornTimestamp());
            expect(!((MessageViewImpl) view).isCorrupted(), "corrupted");
        }
        close(producer, consumer);
        return "100 messages";
    }

    private static String acknowledgedOnce(String name) throws Exception {
        Producer producer = producer(name);
        sendMany(producer, name, 10, 1);
        SimpleConsumer consumer = simpleConsumer(name, name);
        for (int count = 0; count < 10; ) {
            for (MessageView view : consumer.receive(32, SHORT_LEASE)) {
                consumer.ack(view);
                count++;
            }
        }
        long acknowledged = System.nanoTime();
        while (secondsSince(acknowledged) < SHORT_LEASE.getSeconds() + 1) {
            int again = consumer.receive(32, SHORT_LEASE).size();
            expect(again == 0, "%d messages came again", again);
        }
        close(producer, consumer);
        return "";
    }

    private static String leaseEndRedelivers(String name) throws Exception {
        Producer producer = producer(name);
        String id = send(producer, message(name, "once more"));
        SimpleConsumer consumer = simpleConsumer(name, name);
        MessageViewImpl first = (MessageViewImpl) receiveOne(consumer, SHORT_LEASE);
        long received = System.nanoTime();
        MessageViewImpl second = (MessageViewImpl) receiveOne(consumer, SHORT_LEASE);
        double waited = secondsSince(received);
        expect(id(first).equals(id) && id(second).equals(id), "another message");
        expect(first.getDeliveryAttempt() == 1, "first attempt is %d", first.getDeliveryAttempt());
        expect(second.getDeliveryAttempt() == 2, "second attempt is %d", second.getDeliveryAttempt());
        expect(!first.getReceiptHandle().equals(second.getReceiptHandle()), "the same handle again");
        expect(waited > 9 && waited < 15, "again after %.1f s", waited);
        consumer.ack(second);
        close(producer, consumer);
        return String.format("again after %.1f s", waited);
    }

    private static String changedLease(String name) throws Exception {
        Producer producer = producer(name);
        send(producer, message(name, "changed"));
        SimpleConsumer consumer = simpleConsumer(name, name);
        MessageViewImpl view = (MessageViewImpl) receiveOne(consumer, SHORT_LEASE);
        String before = view.getReceiptHandle();
        consumer.changeInvisibleDuration(view, Duration.ofSeconds(30));
        String after = view.getReceiptHandle();
        expect(!after.equals(before), "the handle did not change");
        view.setReceiptHandle(before);
        String problem = problemOf(() -> consumer.ack(view));
        expect(problem.contains("response-code=40013"), "ack with the old handle: %s", problem);
        view.setReceiptHandle(after);
        consumer.ack(view);
        close(producer, consumer);
        return "";
    }

    private static String givenBackAtOnce(String name) throws Exception {
        Producer producer = producer(name);
        send(producer, message(name, "given back"));
        SimpleConsumer consumer = simpleConsumer(name, name);
        for (int attempt = 1; attempt <= 3; attempt++) {
            long asked = System.nanoTime();
            MessageView view = receiveOne(consumer, LONG_LEASE);
            expect(attempt == 1 || secondsSince(asked) < 3, "again after %.1f s", secondsSince(asked));
            expect(view.getDeliveryAttempt() == attempt, "attempt %d is %d", attempt, view.getDeliveryAttempt());
            if (attempt < 3) {
                consumer.changeInvisibleDuration(view, Duration.ZERO);
            } else {
                consumer.ack(view);
            }
        }
        close(producer, consumer);
        return "";
    }

    private static String emptyReceive(String name) throws Exception {
        SimpleConsumer consumer = simpleConsumer(name, name);
        long started = System.nanoTime();
        List<MessageView> views = consumer.receive(32, LONG_LEASE);
        double waited = secondsSince(started);
        expect(views.isEmpty(), "%d messages of an empty topic", views.size());
        expect(waited > 4.5 && waited < 7, "an empty receive took %.1f s", waited);
        close(consumer);
        return String.format("%.1f s", waited);
    }

    private static String receiveWakes(String name) throws Exception {
        Producer producer = producer(name);
        SimpleConsumer consumer = simpleConsumer(name, name);
        CompletableFuture<List<MessageView>> poll = consumer.receiveAsync(32, LONG_LEASE);
        Thread.sleep(1500);
        long sent = System.nanoTime();
        String id = send(producer, message(name, "wakes"));
        List<MessageView> views = poll.get();
        double took = secondsSince(sent);
        expect(views.size() == 1 && id(views.get(0)).equals(id), "other messages: %s", views);
        expect(took < 2, "delivered after %.3f s", took);
        consumer.ack(views.get(0));
        close(producer, consumer);
        return String.format("%.0f ms", took * 1000);
    }

    private static String tagFilter(String name) throws Exception {
        Producer producer = producer(name);
        for (int number = 0; number < 30; number++) {
            send(producer, message(name, "tagged").setTag("abc".substring(number % 3, number % 3 + 1))
                .addProperty("x", "" + number));
        }
        SimpleConsumer consumer = simpleConsumer(name, name, new FilterExpression("a || b"));
        Map<String, Integer> counts = new TreeMap<>();
        receiveSome(consumer, 20).values().forEach(view -> counts.merge(view.getTag().get(), 1, Integer::sum));
        expect(counts.equals(Map.of("a", 10, "b", 10)), "tags %s", counts);
        int more = consumer.receive(32, LONG_LEASE).size();
        expect(more == 0, "%d messages beyond the filter", more);
        SimpleConsumer sql = simpleConsumer(name, name + "-sql",
            new FilterExpression("x > 3 AND x <= 12", FilterExpressionType.SQL92));
        Set<String> numbers = new HashSet<>();
        receiveSome(sql, 9).values().forEach(view -> numbers.add(view.getProperties().get("x")));
        expect(numbers.equals(Set.of("4", "5", "6", "7", "8", "9", "10", "11", "12")), "x of %s", numbers);
        more = sql.receive(32, LONG_LEASE).size();
        expect(more == 0, "%d messages beyond the SQL92 filter", more);
        long asked = System.nanoTime();
        String problem = problemOf(() -> simpleConsumer(name, name + "-bad",
            new FilterExpression("x > 3 AND", FilterExpressionType.SQL92)).receive(32, LONG_LEASE));
        expect(problem.contains("response-code=40010"), "a bad filter: %s", problem);
        close(producer, consumer, sql);
        return String.format("the bad filter is told after %.1f s", secondsSince(asked));
    }

    private static Producer producer(String topic, TransactionChecker checker) throws ClientException {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration()).setTopics(topic)
            .setTransactionChecker(checker).build();
    }

    private static String sendHalf(Producer producer, MessageBuilder message, Transaction transaction)
        throws ClientException {
        return producer.send(message.build(), transaction).getMessageId().toString();
    }

    private static String transactionEnds(String name) throws Exception {
        Producer producer = producer(name, view -> TransactionResolution.UNKNOWN);
        Set<String> committed = new HashSet<>();
        for (int number = 0; number < 10; number++) {
            Transaction transaction = producer.beginTransaction();
            String id = sendHalf(producer, message(name, "body " + number), transaction);
            if (number % 2 == 0) {
                transaction.commit();
                committed.add(id);
            } else {
                transaction.rollback();
            }
        }
        SimpleConsumer consumer = simpleConsumer(name, name);
        Set<String> received = receiveSome(consumer, committed.size()).keySet();
        expect(received.equals(committed), "%s instead of %s", received, committed);
        expect(consumer.receive(32, LONG_LEASE).isEmpty(), "more than was committed");
        close(producer, consumer);
        return "";
    }

    /** It does not know at first, and commits when it is asked again. */
    private static String transactionAskedAfter(String name) throws Exception {
        AtomicInteger asked = new AtomicInteger();
        Producer producer = producer(name, view ->
            asked.incrementAndGet() < 2 ? TransactionResolution.UNKNOWN : TransactionResolution.COMMIT);
        long started = System.nanoTime();
        String id = sendHalf(producer, message(name, "forgotten"), producer.beginTransaction());
        SimpleConsumer consumer = simpleConsumer(name, name);
        Set<String> received = receiveSome(consumer, 1).keySet();
        double waited = secondsSince(started);
        expect(received.equals(Collections.singleton(id)), "%s instead of %s", received, id);
        expect(asked.get() == 2, "asked %d times", asked.get());
        expect(consumer.receive(32, LONG_LEASE).isEmpty(), "committed twice");
        close(producer, consumer);
        return String.format("committed after %.1f s", waited);
    }

    private static String fifoOrder(String name) throws Exception {
        int groups = 10;
        int each = 50;
        Producer producer = producer(name);
        List<Thread> senders = new ArrayList<>();
        List<Throwable> problems = new CopyOnWriteArrayList<>();
        for (int place = 0; place < groups; place++) {
            String group = "group-" + place;
            senders.add(new Thread(() -> {
                try {
                    for (int number = 0; number < each; number++) {
                        send(producer, message(name, "" + number).setMessageGroup(group));
                    }
                } catch (Exception problem) {
                    problems.add(problem);
                }
            }));
        }
        senders.forEach(Thread::start);
        for (Thread sender : senders) {
            sender.join();
        }
        expect(problems.isEmpty(), "send: %s", problems);
        Map<String, List<String>> seen = new ConcurrentHashMap<>();
        AtomicInteger count = new AtomicInteger();
        PushConsumer push = pushConsumer(name, name, view -> {
            seen.computeIfAbsent(view.getMessageGroup().get(), group -> new CopyOnWriteArrayList<>()).add(body(view));
            count.incrementAndGet();
            return ConsumeResult.SUCCESS;
        });
        waitUntil("all FIFO messages are handled", () -> count.get() >= groups * each);
        closePush(push, producer, name, seen.keySet().toArray(String[]::new));
        close(producer);
        List<String> expected = new ArrayList<>();
        for (int number = 0; number < each; number++) {
            expected.add("" + number);
        }
        expect(seen.size() == groups, "%d message groups", seen.size());
        seen.forEach((group, bodies) -> expect(bodies.equals(expected), "%s out of order: %s", group, bodies));
        return "";
    }

    private static String sharedGroup(String name) throws Exception {
        int count = 1000;
        Producer producer = producer(name);
        Set<String> ids = sendMany(producer, name, count, 16);
        List<Map<String, Integer>> found = List.of(new ConcurrentHashMap<>(), new ConcurrentHashMap<>());
        AtomicInteger[] shares = {new AtomicInteger(), new AtomicInteger(), new AtomicInteger()};
        List<Throwable> problems = new CopyOnWriteArrayList<>();
        List<Thread> members = new ArrayList<>();
        for (int place = 0; place < 3; place++) {
            int member = place;
            Map<String, Integer> mine = found.get(member / 2);
            members.add(new Thread(() -> {
                try (SimpleConsumer consumer = simpleConsumer(name, member < 2 ? name : name + "-other")) {
                    while (mine.size() < count) {
                        for (MessageView view : consumer.receive(32, LONG_LEASE)) {
                            consumer.ack(view);
                            mine.merge(id(view), 1, Integer::sum);
                            shares[member].incrementAndGet();
                        }
                    }
                } catch (Exception problem) {
                    problems.add(problem);
                }
            }));
        }
        members.forEach(Thread::start);
        for (Thread member : members) {
            member.join();
        }
        expect(problems.isEmpty(), "%s", problems);
        for (Map<String, Integer> each : found) {
            expect(each.keySet().equals(ids), "other messages than those sent");
            expect(Collections.max(each.values()) == 1, "a message came twice");
        }
        expect(shares[0].get() > 0 && shares[1].get() > 0, "shares %s", Arrays.toString(shares));
        close(producer);
        return "shares " + Arrays.toString(shares);
    }

    private static String concurrentSends(String name) throws Exception {
        Producer producer = producer(name);
        Set<String> ids = sendMany(producer, name, 500, 500);
        SimpleConsumer consumer = simpleConsumer(name, name);
        expect(receiveSome(consumer, 500).keySet().equals(ids), "other messages than those sent");
        close(producer, consumer);
        return "";
    }

    private static String pushAll(String name) throws Exception {
        Producer producer = producer(name);
        Map<String, Integer> handled = new ConcurrentHashMap<>();
        PushConsumer push = pushConsumer(name, name, view -> {
            handled.merge(id(view), 1, Integer::sum);
            return ConsumeResult.SUCCESS;
        });
        Set<String> ids = sendMany(producer, name, 1000, 16);
        waitUntil("all messages are handled", () -> handled.size() >= 1000);
        closePush(push, producer, name);
        expect(handled.keySet().equals(ids), "other messages than those sent");
        expect(Collections.max(handled.values()) == 1, "a message was handled twice");
        // What the push consumer left unacknowledged would be visible again by now.
        SimpleConsumer consumer = simpleConsumer(name, name);
        for (MessageView left : consumer.receive(32, LONG_LEASE)) {
            expect(body(left).equals(WAKE), "left: %s", left);
        }
        close(consumer, producer);
        return "";
    }

    /** Twenty messages in each of three lite topics, of which two are subscribed to; the topic is of the type LITE. */
    private static String litePush(String name) throws Exception {
        Map<String, List<String>> handled = new ConcurrentHashMap<>();
        LitePushConsumer consumer = PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration())
            .setConsumerGroup(name).bindTopic(name).setMessageListener(view -> {
                handled.computeIfAbsent(view.getLiteTopic().orElse(""), key -> new CopyOnWriteArrayList<>())
                    .add(body(view));
                return ConsumeResult.SUCCESS;
            }).build();
        consumer.subscribeLite("first");
        consumer.subscribeLite("second");
        Producer producer = producer(name);
        List<String> sent = new ArrayList<>();
        for (int number = 0; number < 20; number++) {
            sent.add(String.valueOf(number));
            for (String lite : List.of("first", "second", "third")) {
                producer.send(PROVIDER.newMessageBuilder().setTopic(name).setLiteTopic(lite)
                    .setBody(String.valueOf(number).getBytes(StandardCharsets.UTF_8)).build());
            }
        }
        waitUntil("all messages are handled", () -> handled.getOrDefault("first", List.of()).size() >= 20
            && handled.getOrDefault("second", List.of()).size() >= 20);
        consumer.unsubscribeLite("second");
        producer.send(PROVIDER.newMessageBuilder().setTopic(name).setLiteTopic("second")
            .setBody("late".getBytes(StandardCharsets.UTF_8)).build());
        producer.send(PROVIDER.newMessageBuilder().setTopic(name).setLiteTopic("first")
            .setBody("last".getBytes(StandardCharsets.UTF_8)).build());
        sent.add("last");
        waitUntil("the last message is handled", () -> handled.get("first").size() > 20);
        close(consumer, producer);
        expect(handled.get("first").equals(sent), "first: %s", handled.get("first"));
        expect(handled.get("second").equals(sent.subList(0, 20)), "second: %s", handled.get("second"));
        expect(handled.size() == 2, "lite topics: %s", handled.keySet());
        return "";
    }

    private static String pushRetry(String name) throws Exception {
        Producer producer = producer(name);
        String id = send(producer, message(name, "again"));
        List<Integer> attempts = new CopyOnWriteArrayList<>();
        List<Long> times = new CopyOnWriteArrayList<>();
        PushConsumer push = pushConsumer(name, name, view -> {
            times.add(System.nanoTime());
            attempts.add(view.getDeliveryAttempt());
            return attempts.size() == 1 || !id(view).equals(id) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        });
        waitUntil("the message comes again", () -> attempts.size() >= 2);
        closePush(push, producer, name);
        close(producer);
        expect(attempts.equals(List.of(1, 2)), "attempts %s", attempts);
        double waited = (times.get(1) - times.get(0)) / 1e9;
        expect(waited > 0.9 && waited < 5, "again after %.1f s", waited);
        return String.format("again after %.0f ms", waited * 1000);
    }

    /** The group's limit is one retry: two deliveries, then the dead letter queue. */
    private static String pushDeadLetter(String name) throws Exception {
        Producer producer = producer(name);
        String id = send(producer, message(name, "never"));
        AtomicInteger handled = new AtomicInteger();
        PushConsumer push = pushConsumer(name, name, view -> {
            handled.incrementAndGet();
            return ConsumeResult.FAILURE;
        });
        waitUntil("two deliveries", () -> handled.get() >= 2);
        deadLetter(name, id);
        expect(handled.get() == 2, "%d deliveries", handled.get());
        closePush(push, producer, name);
        close(producer);
        return "";
    }

    /** Finds message `id` in the group's dead letter queue, which exists once something was written to it. */
    private static void deadLetter(String group, String id) throws Exception {
        long started = System.nanoTime();
        SimpleConsumer consumer = null;
        while (consumer == null) {
            try {
                consumer = simpleConsumer("%DLQ%" + group, group + "-dead");
            } catch (ClientException | IllegalStateException missing) {
                expect(secondsSince(started) < LIMIT.getSeconds(), "no dead letter queue: %s", missing);
                Thread.sleep(1000);
            }
        }
        MessageView dead = receiveOne(consumer, LONG_LEASE);
        expect(id(dead).equals(id), "dead letter %s, not %s", id(dead), id);
        consumer.ack(dead);
        close(consumer);
    }

    private static String fifoRetryBlocks(String name) throws Exception {
        Producer producer = producer(name);
        send(producer, message(name, "first").setMessageGroup("one-group"));
        send(producer, message(name, "second").setMessageGroup("one-group"));
        List<String> seen = new CopyOnWriteArrayList<>();
        PushConsumer push = pushConsumer(name, name, view -> {
            seen.add(body(view));
            return seen.size() < 3 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        });
        waitUntil("both messages are handled", () -> seen.size() >= 4);
        closePush(push, producer, name, "one-group");
        close(producer);
        expect(seen.equals(List.of("first", "first", "first", "second")), "handled %s", seen);
        return "";
    }

    private static String fifoDeadLetter(String name) throws Exception {
        Producer producer = producer(name);
        String bad = send(producer, message(name, "bad").setMessageGroup("one-group"));
        send(producer, message(name, "good").setMessageGroup("one-group"));
        List<String> seen = new CopyOnWriteArrayList<>();
        PushConsumer push = pushConsumer(name, name, view -> {
            seen.add(body(view));
            return body(view).equals("bad") ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        });
        waitUntil("the next message is handled", () -> seen.contains("good"));
        closePush(push, producer, name, "one-group");
        close(producer);
        expect(seen.equals(List.of("bad", "bad", "good")), "handled %s", seen);
        deadLetter(name, bad);
        return "";
    }

    private static String largeBody(String name) throws Exception {
        Producer producer = producer(name);
        byte[] body = new byte[4 << 20];
        for (int place = 0; place < body.length; place++) {
            body[place] = (byte) (place * 31);
        }
        producer.send(PROVIDER.newMessageBuilder().setTopic(name).setBody(body).build());
        SimpleConsumer consumer = simpleConsumer(name, name);
        MessageView view = receiveOne(consumer, LONG_LEASE);
        expect(Arrays.equals(bytes(view.getBody()), body), "the body changed, %d bytes", view.getBody().remaining());
        consumer.ack(view);
        // The client knows the limit from its settings and refuses more by itself.
        String problem = problemOf(() -> producer.send(
            PROVIDER.newMessageBuilder().setTopic(name).setBody(new byte[(4 << 20) + 1]).build()));
        expect(problem.contains("4194304"), "4 MiB + 1: %s", problem);
        close(producer, consumer);
        return "4 MiB";
    }

    private static String refusedMessages(String name) throws Exception {
        Producer producer = producer(name);
        MessageBuilder many = message(name, "refused");
        for (int number = 0; number < 129; number++) {
            many.addProperty("p" + number, "v");
        }
        // What the client's builder refuses by itself (no body, a tag with a bar, a blank key) never reaches the broker.
        Map<String, MessageBuilder> refused = new TreeMap<>();
        refused.put("43101", many);
        refused.put("40007", message(name, "refused").addProperty("KEYS", "v"));
        for (Map.Entry<String, MessageBuilder> each : refused.entrySet()) {
            String problem = problemOf(() -> send(producer, each.getValue()));
            expect(problem.contains("response-code=" + each.getKey()), "expected %s: %s", each.getKey(), problem);
        }
        String problem = problemOf(() -> send(producer, message(name, "refused").setMessageGroup("group")));
        expect(problem.contains("not match"), "FIFO to a NORMAL topic: %s", problem);
        send(producer, message(name, "taken"));
        close(producer);
        return "";
    }

    private static String unknownTopic(String name) throws Exception {
        String problem = problemOf(() -> producer("no-such-topic"));
        expect(problem.contains("response-code=40402"), "start with an unknown topic: %s", problem);
        Producer producer = producer();
        problem = problemOf(() -> send(producer, message("no-such-topic", "lost")));
        expect(problem.contains("response-code=40402"), "send to an unknown topic: %s", problem);
        close(producer);
        return "";
    }

    private static String delayed(String name) throws Exception {
        Producer producer = producer(name);
        SimpleConsumer consumer = simpleConsumer(name, name);
        long due = System.currentTimeMillis() + 5_000;
        String id = send(producer, message(name, "later").setDeliveryTimestamp(due));
        send(producer, message(name, "at once").setDeliveryTimestamp(System.currentTimeMillis() - 300_000));
        MessageView first = receiveOne(consumer, LONG_LEASE);
        expect(body(first).equals("at once"), "first came %s", body(first));
        expect(System.currentTimeMillis() < due, "it came late");
        consumer.ack(first);
        MessageView view = receiveOne(consumer, LONG_LEASE);
        long late = System.currentTimeMillis() - due;
        expect(id(view).equals(id), "another message");
        expect(late >= 0 && late < 2_000, "%d ms after its time", late);
        expect(view.getDeliveryTimestamp().orElse(0L) == due, "delivery time %s", view.getDeliveryTimestamp());
        consumer.ack(view);
        close(producer, consumer);
        return late + " ms after its time";
    }

    private static String recalled(String name) throws Exception {
        Producer producer = producer(name);
        SimpleConsumer consumer = simpleConsumer(name, name);
        long due = System.currentTimeMillis() + 5_000;
        SendReceipt recalled = producer.send(message(name, "recalled").setDeliveryTimestamp(due).build());
        SendReceipt kept = producer.send(message(name, "kept").setDeliveryTimestamp(due).build());
        String id = producer.recallMessage(name, recalled.getRecallHandle()).getMessageId().toString();
        expect(id.equals(recalled.getMessageId().toString()), "recalled %s", id);
        String again = problemOf(() -> producer.recallMessage(name, recalled.getRecallHandle()));
        expect(again.contains("40400"), "second recall: %s", again);
        MessageView view = receiveOne(consumer, LONG_LEASE);
        expect(id(view).equals(kept.getMessageId().toString()), "the recalled message came");
        consumer.ack(view);
        String late = problemOf(() -> producer.recallMessage(name, kept.getRecallHandle()));
        expect(late.contains("40400"), "recall of a delivered message: %s", late);
        expect(consumer.receive(32, LONG_LEASE).isEmpty(), "more messages");
        close(producer, consumer);
        return "";
    }

    private static String clientRestart(String name) throws Exception {
        Producer first = producer(name);
        Set<String> ids = sendMany(first, name, 20, 4);
        close(first);
        SimpleConsumer consumer = simpleConsumer(name, name);
        Set<String> found = new HashSet<>();
        while (found.size() < 10) {
            for (MessageView view : consumer.receive(10 - found.size(), LONG_LEASE)) {
                consumer.ack(view);
                found.add(id(view));
            }
        }
        close(consumer);
        Producer second = producer(name);
        ids.addAll(sendMany(second, name, 20, 4));
        consumer = simpleConsumer(name, name);
        for (String id : receiveSome(consumer, 30).keySet()) {
            expect(found.add(id), "an acknowledged message came again");
        }
        expect(found.equals(ids), "other messages than those sent");
        close(second, consumer);
        return "";
    }

    /** The clients live on while the broker is killed and started again at the same address. */
    /** Waits while it is told to print its stacks, to verify a message, and to connect anew; then it still works. */
    private static String toldByTheOperator(String name) throws Exception {
        Producer producer = producer(name);
        AtomicInteger handled = new AtomicInteger();
        PushConsumer push = pushConsumer(name, name, view -> {
            handled.incrementAndGet();
            return body(view).equals("bad") ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        });
        send(producer, message(name, "good"));
        waitUntil("the first message is handled", () -> handled.get() == 1);
        waitForContinue(name);
        expect(handled.get() == 2, "handled %d messages: one verified", handled.get());
        send(producer, message(name, "after"));
        waitUntil("a message after the commands is handled", () -> handled.get() == 3);
        closePush(push, producer, name);
        close(producer);
        return "";
    }

    private static String masterRestart(String name) throws Exception {
        Producer producer = producer(name);
        SimpleConsumer consumer = simpleConsumer(name, name);
        Set<String> handled = ConcurrentHashMap.newKeySet();
        PushConsumer push = pushConsumer(name, name + "-push", view -> {
            handled.add(id(view));
            return ConsumeResult.SUCCESS;
        });
        Set<String> ids = sendMany(producer, name, 20, 4);
        Set<String> found = new HashSet<>(receiveSome(consumer, 20).keySet());
        waitForContinue(name);
        long started = System.nanoTime();
        int failures = 0;
        for (int sent = 0; sent < 20; ) {
            try {
                ids.add(send(producer, message(name, "after")));
                sent++;
            } catch (ClientException | RuntimeException problem) { // gRPC's own exceptions come through
                failures++;
                expect(secondsSince(started) < LIMIT.getSeconds(), "no send: %s", problem);
                Thread.sleep(200);
            }
        }
        double sending = secondsSince(started);
        while (!found.containsAll(ids)) {
            expect(secondsSince(started) < 2 * LIMIT.getSeconds(), "%d of %d messages", found.size(), ids.size());
            try {
                for (MessageView view : consumer.receive(32, LONG_LEASE)) {
                    consumer.ack(view);
                    found.add(id(view));
                }
            } catch (ClientException | RuntimeException problem) {
                Thread.sleep(200);
            }
        }
        double receiving = secondsSince(started);
        waitUntil("the push consumer handled everything", () -> handled.containsAll(ids));
        double pushing = secondsSince(started);
        closePush(push, producer, name);
        close(consumer, producer);
        return String.format("%d failed sends; sends again after %.1f s, receives %.1f s, push %.1f s", failures, sending,
            receiving, pushing);
    }

    // Leases that the broker renews.

    private static final Duration LONG_HANDLING = Duration.ofSeconds(150);

    /** Longer than any lease: the message does not come again, and is acknowledged with the handle of its receive. */
    private static String slowHandler(String name) throws Exception {
        Producer producer = producer(name);
        AtomicInteger deliveries = new AtomicInteger();
        Semaphore done = new Semaphore(0);
        PushConsumer push = pushConsumer(name, name, view -> {
            deliveries.incrementAndGet();
            try {
                Thread.sleep(LONG_HANDLING.toMillis());
            } catch (InterruptedException problem) {
                return ConsumeResult.FAILURE;
            }
            done.release();
            return ConsumeResult.SUCCESS;
        });
        send(producer, message(name, "slow"));
        done.acquire();
        closePush(push, producer, name);
        SimpleConsumer consumer = simpleConsumer(name, name);
        for (MessageView left : consumer.receive(32, LONG_LEASE)) {
            expect(body(left).equals(WAKE), "left: %s", left);
        }
        expect(deliveries.get() == 1, "%d deliveries", deliveries.get());
        close(producer, consumer);
        return "";
    }

    private static final int HELD = 5;

    /** Takes messages, and is killed by the starter before it is done with any. */
    private static String held(String name) throws Exception {
        Producer producer = producer(name);
        AtomicInteger taken = new AtomicInteger();
        pushConsumer(name, name, view -> {
            taken.incrementAndGet();
            try {
                Thread.sleep(LONG_HANDLING.multipliedBy(10).toMillis());
            } catch (InterruptedException problem) {
                return ConsumeResult.FAILURE;
            }
            return ConsumeResult.SUCCESS;
        });
        sendMany(producer, name, HELD, 1);
        waitUntil("all messages are held", () -> taken.get() == HELD);
        waitForContinue(name);
        return "";
    }

    /** Another member of the group gets what the killed one held: within the 120 s of its session, and a lease. */
    private static String takenOver(String name) throws Exception {
        Set<String> handled = ConcurrentHashMap.newKeySet();
        pushConsumer("held", "held", view -> {
            handled.add(id(view));
            return ConsumeResult.SUCCESS;
        });
        waitForContinue(name);
        expect(handled.isEmpty(), "it got %d of those that are held", handled.size());
        long killed = System.nanoTime();
        while (handled.size() < HELD) {
            expect(secondsSince(killed) < 120 + 60, "%d of %d messages", handled.size(), HELD);
            Thread.sleep(100);
        }
        return String.format("after %.0f s", secondsSince(killed));
    }

    // Clusters of two broker groups.

    /** One message for each of ten message groups. */
    private static String oneQueue(String name) throws Exception {
        Producer producer = producer(name);
        for (int group = 0; group < 10; group++) {
            send(producer, message(name, "java").setMessageGroup("group-" + group));
        }
        close(producer);
        return "";
    }

    /** Sends without a pause, and handles, while the starter exchanges a master: between "waits" and "continue". */
    private static String changeOfMaster(String name) throws Exception {
        ClientConfiguration impatient = ClientConfiguration.newBuilder().setEndpoints(endpoint).enableSsl(false).build();
        Producer producer =
            PROVIDER.newProducerBuilder().setClientConfiguration(impatient).setTopics(name).build();
        Set<String> handled = ConcurrentHashMap.newKeySet();
        PushConsumer push = pushConsumer(name, name, view -> {
            handled.add(id(view));
            return ConsumeResult.SUCCESS;
        });
        Set<String> acknowledged = new HashSet<>();
        int failures = 0;
        double slowest = 0;
        int before = 0;
        for (int rest = 30; rest > 0; ) {
            long started = System.nanoTime();
            try {
                acknowledged.add(send(producer, message(name, "body")));
                if (before == 0 && acknowledged.size() == 30) {
                    before = acknowledged.size();
                    print(String.format("{\"scenario\": %s, \"waits\": true}", json(name)));
                } else if (before > 0 && (rest < 30 || CONTINUED.get(name).tryAcquire())) {
                    rest--;
                }
            } catch (ClientException | RuntimeException problem) { // gRPC's own exceptions come through
                failures++;
            }
            slowest = Math.max(slowest, secondsSince(started));
            Thread.sleep(20);
        }
        // Three attempts of 3 s each.
        expect(slowest < 10, "a send took %.1f s", slowest);
        waitUntil("all that was acknowledged is handled", () -> handled.containsAll(acknowledged));
        int count = acknowledged.size();
        closePush(push, producer, name);
        close(producer);
        return String.format("%d sends, %d failed, slowest %.1f s", count, failures, slowest);
    }

    /** Clients that start while a broker group of the topic is dead. */
    private static String deadMaster(String name) throws Exception {
        Producer producer = producer(name);
        SimpleConsumer consumer = simpleConsumer(name, name);
        Set<String> ids = sendMany(producer, name, 20, 4);
        Set<String> found = receiveSome(consumer, 20).keySet();
        expect(found.equals(ids), "other messages than those sent");
        close(producer, consumer);
        return "";
    }

    /** The sender is told that no slave has its message, tries as often as it may, and all copies have one id. */
    private static String noSlave(String name) throws Exception {
        Producer producer = producer(name);
        String problem = problemOf(() -> send(producer, message(name, "alone")));
        expect(problem.contains("50002") || problem.contains("50402"), "send without a slave: %s", problem);
        waitForContinue(name);
        SimpleConsumer consumer = simpleConsumer(name, name);
        List<String> ids = new ArrayList<>();
        for (List<MessageView> views = consumer.receive(32, LONG_LEASE); !views.isEmpty(); ) {
            for (MessageView view : views) {
                consumer.ack(view);
                ids.add(id(view));
            }
            views = consumer.receive(32, LONG_LEASE);
        }
        expect(ids.size() > 1 && new HashSet<>(ids).size() == 1, "copies %s", ids);
        close(producer, consumer);
        return ids.size() + " copies";
    }
}
