import java.util.Locale;
import java.util.concurrent.atomic.AtomicLongArray;

/** Latencies in log-linear buckets of nanoseconds: 64 to each power of two, so a quantile errs by 1.6 % at most. */
final class Histogram {
    private static final int SUB_BUCKETS = 64;
    private final AtomicLongArray buckets = new AtomicLongArray(60 * SUB_BUCKETS);

    private static int bucketOf(long nanoseconds) {
        if (nanoseconds < SUB_BUCKETS) {
            return (int) Math.max(nanoseconds, 0);
        }
        int exponent = 63 - Long.numberOfLeadingZeros(nanoseconds);
        return (exponent - 5) * SUB_BUCKETS + (int) (nanoseconds >> (exponent - 6) & (SUB_BUCKETS - 1));
    }

    private static double middleOf(int bucket) {
        return bucket < SUB_BUCKETS
            ? bucket
            : Math.scalb(1 + (bucket % SUB_BUCKETS + 0.5) / SUB_BUCKETS, bucket / SUB_BUCKETS + 5);
    }

    void add(long nanoseconds) {
        buckets.incrementAndGet(bucketOf(nanoseconds));
    }

    void merge(Histogram other) {
        for (int i = 0; i < buckets.length(); i++) {
            buckets.addAndGet(i, other.buckets.get(i));
        }
    }

    /** JSON of the latency in milliseconds that `share` of the entries do not exceed; null when there are none. */
    String quantileMs(double share) {
        long entries = 0;
        for (int i = 0; i < buckets.length(); i++) {
            entries += buckets.get(i);
        }
        long rank = (long) Math.ceil(entries * share), seen = 0;
        for (int i = 0; i < buckets.length(); i++) {
            seen += buckets.get(i);
            if (seen >= rank && seen > 0) {
                return String.format(Locale.ROOT, "%.3f", middleOf(i) / 1e6);
            }
        }
        return "null";
    }
}
