import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Load by the official Java client of the gRPC API.
 *
 * <pre>
 * OfficialLoad send  --endpoint=H:P --topic=T --inflight=32 --size=1024 --warmup=12 --windows=4 --seconds=4 --pids=…
 * OfficialLoad drain --endpoint=H:P --topic=T --group=G --receivers=8 --batch=32 --count=30000
 * </pre>
 */
public final class OfficialLoad {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    public static void main(String[] arguments) {
        try {
            Options options = new Options(arguments);
            switch (options.operation) {
                case "send" -> send(options);
                case "drain" -> drain(options);
                default -> throw new IllegalArgumentException("usage: OfficialLoad send|drain --name=value…");
            }
        } catch (Exception failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0); // the client's idle threads would hold the process for seconds
    }

    private static ClientConfiguration configuration(Options options) {
        return ClientConfiguration.newBuilder()
            .setEndpoints(options.text("endpoint", "127.0.0.1:8081"))
            .enableSsl(false)
            .setRequestTimeout(Duration.ofMillis(options.milliseconds("timeout", 10)))
            .build();
    }

    /** Keeps --inflight sends in the air. A send is tried once: a retry would hide an error. */
    private static void send(Options options) throws Exception {
        String topic = options.text("topic", "bench"), tag = options.text("tag", "bench");
        int inflight = options.number("inflight", 32);
        byte[] body = options.body();
        Meter meter = new Meter("send", options, 1);
        Semaphore slots = new Semaphore(inflight);
        try (Producer producer = PROVIDER.newProducerBuilder()
                .setClientConfiguration(configuration(options)).setTopics(topic).setMaxAttempts(1).build()) {
            Thread sender = new Thread(() -> {
                for (long number = 0; !meter.isOver(); number++) {
                    slots.acquireUninterruptibly();
                    var message = PROVIDER.newMessageBuilder()
                        .setTopic(topic).setTag(tag).setKeys("k" + number).setBody(body).build();
                    long started = System.nanoTime();
                    producer.sendAsync(message).whenComplete((receipt, failure) -> {
                        if (failure == null) {
                            meter.done(1, System.nanoTime() - started);
                        } else {
                            meter.failed(failure.toString());
                        }
                        slots.release();
                    });
                }
            }, "sender");
            sender.start();
            meter.run();
            sender.join();
            slots.tryAcquire(inflight, 10, TimeUnit.SECONDS);
        }
    }

    /** --receivers receivers, each with one receive at a time and then one acknowledgement for each message, all at once. */
    private static void drain(Options options) throws Exception {
        int batch = options.number("batch", 32), receivers = options.number("receivers", 8);
        long count = options.number("count", 0);
        Duration invisible = Duration.ofMillis(options.milliseconds("invisible", 60));
        Meter meter = new Meter("drain", options, 0);
        AtomicLong acked = new AtomicLong();
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration(options))
                .setConsumerGroup(options.text("group", "bench-group"))
                .setAwaitDuration(Duration.ofMillis(options.milliseconds("poll", 5)))
                .setSubscriptionExpressions(
                    Collections.singletonMap(options.text("topic", "bench"), FilterExpression.SUB_ALL))
                .build()) {
            for (int i = 0; i < receivers; i++) {
                Thread receiver = new Thread(() -> {
                    while (!meter.isOver()) {
                        long total = acked.addAndGet(receiveAndAcknowledge(consumer, batch, invisible, meter));
                        if (count > 0 && total >= count) {
                            meter.end();
                        }
                    }
                }, "receiver-" + i);
                receiver.setDaemon(true);
                receiver.start();
            }
            meter.endAfter(options.milliseconds("limit", 300));
            meter.run();
        }
        if (acked.get() < count) {
            throw new IllegalStateException(acked + " of " + count + " messages acknowledged");
        }
    }

    /** One turn of a receiver; its latency is that of the receive. Returns how many messages were acknowledged. */
    private static int receiveAndAcknowledge(SimpleConsumer consumer, int batch, Duration invisible, Meter meter) {
        long started = System.nanoTime();
        List<MessageView> messages;
        try {
            messages = consumer.receive(batch, invisible);
        } catch (Exception failure) {
            if (!meter.isOver()) {
                meter.failed("receive: " + failure);
            }
            return 0;
        }
        long latency = System.nanoTime() - started;
        List<CompletableFuture<Void>> acknowledgements = new ArrayList<>();
        messages.forEach(message -> acknowledgements.add(consumer.ackAsync(message)));
        int acked = 0;
        for (CompletableFuture<Void> acknowledgement : acknowledgements) {
            try {
                acknowledgement.join();
                acked++;
            } catch (Exception failure) {
                meter.failed("ack: " + failure);
            }
        }
        if (acked > 0) {
            meter.done(acked, latency);
        }
        return acked;
    }
}
