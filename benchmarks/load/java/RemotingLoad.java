import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Load by RocketMQ's own Java client over its remoting protocol.
 *
 * <pre>
 * RemotingLoad send  --ns=H:P --topic=T --inflight=32 --size=1024 --warmup=12 --windows=4 --seconds=4 --pids=…
 * </pre>
 */
public final class RemotingLoad {
    public static void main(String[] arguments) {
        try {
            Options options = new Options(arguments);
            if (!options.operation.equals("send")) {
                throw new IllegalArgumentException("usage: RemotingLoad send --name=value…");
            }
            send(options);
        } catch (Exception failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0); // the client's idle threads would hold the process for seconds
    }

    /** Keeps --inflight requests in the air. Each is tried once and none is compressed: bodies stay what they are. */
    private static void send(Options options) throws Exception {
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
            for (long number = 0; !meter.isOver(); number++) {
                slots.acquireUninterruptibly();
                SendCallback callback = callback(meter, slots, System.nanoTime());
                try {
                    producer.send(new Message(topic, tag, "k" + number, body), callback);
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

    private static SendCallback callback(Meter meter, Semaphore slots, long started) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                // FLUSH_SLAVE_TIMEOUT and its like come here too: stored, but not as safely as was asked for.
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    meter.done(1, System.nanoTime() - started);
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
}
