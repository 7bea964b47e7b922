import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.Collectors;

/**
 * Counts answers into the window that is open when they arrive, and prints a JSON line for each window and one for all.
 * After --warmup seconds come --windows windows of --seconds each; with no windows, one until the work has ended.
 */
final class Meter {
    private static final class Window {
        final LongAdder messages = new LongAdder();
        final LongAdder errors = new LongAdder();
        final Histogram latencies = new Histogram();
    }

    private final String operation;
    private final long warmupMs, windowMs;
    private final int windows;
    private final Map<String, Long> pids;
    private final CountDownLatch ended = new CountDownLatch(1);
    private final AtomicBoolean failedBefore = new AtomicBoolean();
    private volatile Window current = new Window();

    private final Window total = new Window();
    private final Map<String, Double> totalCpu = new LinkedHashMap<>();
    private double totalSeconds, totalOwn, totalStrangers;

    Meter(String operation, Options options, int defaultWindows) {
        this.operation = operation;
        warmupMs = options.milliseconds("warmup", 0);
        windowMs = options.milliseconds("seconds", 5);
        windows = options.number("windows", defaultWindows);
        pids = options.pids();
    }

    /** Counts messages whose one request took `nanoseconds`; any thread. */
    void done(int messages, long nanoseconds) {
        Window window = current;
        window.messages.add(messages);
        window.latencies.add(nanoseconds);
    }

    /** Counts one request that was not answered OK; the first reason is printed at once. */
    void failed(String reason) {
        current.errors.increment();
        if (failedBefore.compareAndSet(false, true)) {
            System.err.println("first error: " + reason);
        }
    }

    /** The work is done: closes the last window. */
    void end() {
        ended.countDown();
    }

    /** Ends the work at the latest after so long; what is missing then is for the caller to see. */
    void endAfter(long milliseconds) {
        Thread alarm = new Thread(() -> {
            try {
                ended.await(milliseconds, TimeUnit.MILLISECONDS);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
            end();
        }, "limit");
        alarm.setDaemon(true);
        alarm.start();
    }

    boolean isOver() {
        return ended.getCount() == 0;
    }

    /** Measures all windows; returns when they are over, or early at {@link #end}. */
    void run() throws InterruptedException {
        ended.await(warmupMs, TimeUnit.MILLISECONDS);
        for (int number = 0; number < Math.max(1, windows) && (number == 0 || !isOver()); number++) {
            Window window = new Window();
            CpuReading before = CpuReading.now(pids);
            long started = System.nanoTime();
            current = window;
            if (windows == 0) {
                ended.await();
            } else {
                ended.await(windowMs, TimeUnit.MILLISECONDS);
            }
            double seconds = (System.nanoTime() - started) / 1e9;
            current = new Window();
            report(number, window, seconds, CpuReading.now(pids).since(before));
        }
        end();
        String head = String.format("\"op\":\"total\",\"of\":\"%s\"", operation);
        print(head, total, totalSeconds, totalCpu, totalOwn, totalStrangers);
    }

    private void report(int number, Window window, double seconds, CpuReading cpu) {
        String head = String.format("\"op\":\"%s\",\"window\":%d", operation, number);
        print(head, window, seconds, cpu.named(), cpu.own(), cpu.strangers());
        total.messages.add(window.messages.sum());
        total.errors.add(window.errors.sum());
        total.latencies.merge(window.latencies);
        totalSeconds += seconds;
        totalOwn += cpu.own();
        totalStrangers += cpu.strangers();
        cpu.named().forEach((name, value) -> totalCpu.merge(name, value, Double::sum));
    }

    private static void print(
        String head, Window window, double seconds, Map<String, Double> cpu, double own, double strangers) {
        String named = cpu.entrySet().stream()
            .map(entry -> String.format(Locale.ROOT, "\"%s\":%.2f", entry.getKey(), entry.getValue()))
            .collect(Collectors.joining(","));
        Histogram latencies = window.latencies;
        System.out.printf(Locale.ROOT,
            "{%s,\"seconds\":%.3f,\"messages\":%d,\"errors\":%d,\"msg_s\":%.0f,\"p50_ms\":%s,\"p99_ms\":%s,"
                + "\"p999_ms\":%s,\"cpu_s\":{%s},\"own_cpu_s\":%.2f,\"stranger_cpu_s\":%.2f}%n",
            head, seconds, window.messages.sum(), window.errors.sum(), window.messages.sum() / Math.max(seconds, 1e-9),
            latencies.quantileMs(.5), latencies.quantileMs(.99), latencies.quantileMs(.999), named, own, strangers);
        System.out.flush();
    }
}
