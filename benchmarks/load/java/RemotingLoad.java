import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Load by RocketMQ's own Java client over its remoting protocol.
 *
 * <pre>
 * RemotingLoad send  --ns=H:P --topic=T --inflight=32 --size=1024 --warmup=12 --windows=4 --seconds=4 --pids=…
 * RemotingLoad batch --ns=H:P --topic=T --inflight=8 --batch=32 …
 * RemotingLoad drain --ns=H:P --topic=T --group=G --batch=32 --count=300000     (push consumer, from the first message)
 * </pre>
 */
public final class RemotingLoad {
    public static void main(String[] arguments) {
        try {
            Options options = new Options(arguments);
            switch (options.operation) {
                case "send" -> send(options, 1);
                case "batch" -> send(options, options.number("batch", 32));
                case "drain" -> drain(options);
                default -> throw new IllegalArgumentException("usage: RemotingLoad send|batch|drain --name=value…");
            }
        } catch (Exception failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0); // the client's idle threads would hold the process for seconds
    }

    /** Keeps --inflight requests in the air. Each is tried once and none is compressed: bodies stay what they are. */
    private static void send(Options options, int batch) throws Exception {
        int inflight = options.number("inflight", 32);
        String topic = options.text("topic", "bench"), tag = options.text("tag", "bench");
        byte[] body = options.body();
        DefaultMQProducer producer = new DefaultMQProducer("bench-producer-" + System.nanoTime());
        producer.setNamesrvAddr(options.text("ns", "127.0.0.1:9876"));
        producer.setVipChannelEnabled(false);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setSendMsgTimeout((int) options.milliseconds("timeout", 10));
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        Meter meter = new Meter(options.operation, options, 1);
        Semaphore slots = new Semaphore(inflight);
        Thread sender = new Thread(() -> {
            for (long number = 0; !meter.isOver(); number += batch) {
                slots.acquireUninterruptibly();
                SendCallback callback = callback(meter, slots, batch, System.nanoTime());
                try {
                    if (batch == 1) {
                        producer.send(new Message(topic, tag, "k" + number, body), callback);
                    } else {
                        List<Message> messages = new ArrayList<>(batch);
                        for (int i = 0; i < batch; i++) {
                            messages.add(new Message(topic, tag, "k" + (number + i), body));
                        }
                        producer.send(messages, callback);
                    }
                } catch (Exception refused) {
                    callback.onException(refused);
                }
            }
        }, "sender");
        sender.start();
        meter.run();
        sender.join();
        slots.tryAcquire(inflight, 10, TimeUnit.SECONDS);
        producer.shutdown();
    }

    private static SendCallback callback(Meter meter, Semaphore slots, int messages, long started) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                // FLUSH_SLAVE_TIMEOUT and its like come here too: stored, but not as safely as was asked for.
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    meter.done(messages, System.nanoTime() - started);
                } else {
                    meter.failed(result.getSendStatus().toString());
                }
                slots.release();
            }

            @Override
            public void onException(Throwable failure) {
                meter.failed(failure.toString());
                slots.release();
            }
        };
    }

    /** A push consumer, measured from its first message on: before it stands the rebalancing. Without latencies. */
    private static void drain(Options options) throws Exception {
        long count = options.number("count", 0);
        int batch = options.number("batch", 32);
        Meter meter = new Meter("drain", options, 0);
        AtomicLong consumed = new AtomicLong();
        CountDownLatch first = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group", "bench-group-" + System.nanoTime()));
        consumer.setNamesrvAddr(options.text("ns", "127.0.0.1:9876"));
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.text("topic", "bench"), "*");
        consumer.setPullBatchSize(batch);
        consumer.setConsumeMessageBatchMaxSize(batch);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.countDown();
            meter.done(messages.size());
            if (consumed.addAndGet(messages.size()) >= count && count > 0) {
                meter.end();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long limit = options.milliseconds("limit", 300);
        if (!first.await(limit, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException("no message arrived");
        }
        meter.endAfter(limit);
        meter.run();
        consumer.shutdown();
        if (consumed.get() < count) {
            throw new IllegalStateException(consumed + " of " + count + " messages consumed");
        }
    }
}
